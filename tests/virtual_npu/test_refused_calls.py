"""Calls that CANN refuses: the virtual NPU leaves their outputs uninitialized, and the watch stops there."""

import threading
from collections import Counter
from random import Random

import numpy as np
import paddle
import pytest
import tiny_models
from paddle.distributed.fleet.utils import recompute

import paddle_fused
import virtual_npu
from llm_npu.surgery import apply_fused_kernels
from paddle_fused.acl_errors import is_refusal, recent_message

pytestmark = pytest.mark.paddlenlp

# The kernels of a training step of a Llama that run through aclnn.
KERNELS = (
    *("adamw", "add", "add_grad", "cast", "concat", "concat_grad", "cross_entropy_with_softmax"),
    *("cross_entropy_with_softmax_grad", "divide", "divide_grad", "embedding_grad", "equal"),
    *("flash_attention_npu", "flash_attention_npu_grad", "full", "full_like", "greater_than", "matmul"),
    *("matmul_grad", "maximum", "multiply", "multiply_grad", "not_equal", "rms_norm_npu"),
    *("rms_norm_npu_grad", "scale", "split_with_num", "sqrt", "stack", "sum", "sum_grad", "swiglu"),
    *("swiglu_grad", "where"),
)
# Kernels that operators of other names call. In the backward pass, other kernels than gradients are named as
# the gradient that calls them or whose sum they compute.
CALLERS = {
    "matmul": {"linear", "matmul"},
    "matmul_grad": {"linear_grad", "matmul_grad"},
    "full": {"full", "not_equal", "equal", "greater_than", "where"},
}
ALSO_IN_GRADIENTS = {"add", "cast", "concat", "full", "scale"}
STEPS = 3
DEFAULT = ("adamw", "full", "matmul", "rms_norm_npu_grad")


@pytest.fixture
def npu():
    before = paddle.device.get_device()
    paddle.device.set_device("npu:0")
    recent_message()
    yield
    virtual_npu.refuse("matmul", 0)
    recent_message()
    paddle.device.set_device(before)


def training_step():
    paddle.seed(1)
    model = tiny_models.build("llama")
    model.to(dtype="bfloat16")
    apply_fused_kernels(model)
    optimizer = paddle_fused.FusedAdamW(
        parameters=model.parameters(), multi_precision=True, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)
    )
    ids = paddle.to_tensor(np.arange(24).reshape(2, 12))

    def step() -> float:
        loss = model(input_ids=ids, labels=ids)[0]
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return step


def test_the_output_of_a_refused_call_is_what_the_memory_holds(npu):
    x = paddle.full([64, 64], 2.0)
    expected = paddle.matmul(x, x).numpy()
    virtual_npu.refuse("matmul", 2)
    assert (paddle.matmul(x, x).numpy() == expected).all() and recent_message() == ""
    kept = paddle.full([64, 64], 7.0)
    virtual_npu.refuse("scale")
    kept.scale_(3.0)  # in place: the memory holds the input
    assert (kept.numpy() == 7.0).all()
    assert is_refusal(recent_message()) and recent_message() == ""  # reading clears it


def test_only_kernels_of_aclnn_are_refused():
    with pytest.raises(ValueError, match="fused_rope"):
        virtual_npu.refuse("fused_rope")


@pytest.fixture(scope="module")
def calls_of_steps() -> list[Counter]:
    """The calls of each kernel in the first steps of a training."""
    before = paddle.device.get_device()
    paddle.device.set_device("npu:0")
    step, calls = training_step(), []
    for _ in range(STEPS):
        virtual_npu.reset_kernel_record()
        step()
        calls.append(Counter())
        for row in virtual_npu.kernel_record():
            calls[-1][row.name] += row.calls
    paddle.device.set_device(before)
    return calls


def test_the_list_of_kernels_is_that_of_a_step(calls_of_steps):
    for calls in calls_of_steps:
        assert set(calls) & set(virtual_npu.aclnn_kernels()) == set(KERNELS)


@pytest.mark.parametrize(
    "kernel", [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in KERNELS]
)
def test_a_refused_call_stops_its_step_with_the_name_of_the_operator(npu, calls_of_steps, kernel):
    """A random call of each kernel, in a random step."""
    random = Random(kernel)
    refused_step = random.randrange(STEPS)
    call = random.randint(1, calls_of_steps[refused_step][kernel])
    step = training_step()
    virtual_npu.refuse(kernel, call + sum(calls[kernel] for calls in calls_of_steps[:refused_step]))
    with paddle_fused.watch_acl_errors() as watch:
        for _ in range(refused_step):
            step()
            watch.check()
        with pytest.raises(paddle_fused.AclError) as caught:
            step()
    operator = caught.value.operator
    is_gradient = kernel in ALSO_IN_GRADIENTS and operator.endswith("_grad")
    assert operator in CALLERS.get(kernel, {kernel}) or is_gradient
    assert "161xxx" in caught.value.cause and watch.error is caught.value


@pytest.mark.parametrize(
    ("kernel", "operator", "call"),
    [
        ("masked_select", "getitem", lambda x: x[x > 0]),
        ("set_value", "setitem", lambda x: x.detach().__setitem__(0, 2.0)),
        ("full", "full", lambda x: (x.sum().backward(), x.clear_gradient(set_to_zero=True))),
    ],
)
def test_calls_of_tensors_in_cpp_are_named(npu, kernel, operator, call):
    x = paddle.ones([4, 4])
    x.stop_gradient = False
    virtual_npu.reset_kernel_record()
    call(x)
    calls = sum(row.calls for row in virtual_npu.kernel_record() if row.name == kernel)
    virtual_npu.refuse(kernel, calls)  # the last one
    with paddle_fused.watch_acl_errors(), pytest.raises(paddle_fused.AclError) as caught:
        call(x)
    assert caught.value.operator == operator


def test_without_its_operators_watched_a_step_is_stopped_too(npu):
    step = training_step()
    with paddle_fused.watch_acl_errors() as watch:
        step()
        watch.check()
        watch.watch_operators(False)
        step()
        watch.check()
        virtual_npu.refuse("swiglu_grad")
        with pytest.raises(paddle_fused.AclError, match="an operator of the forward or backward pass"):
            step()


def test_the_losses_are_those_without_the_watch(npu):
    step = training_step()
    plain = [step() for _ in range(2)]
    step = training_step()
    with paddle_fused.watch_acl_errors():
        assert [step() for _ in range(2)] == plain


def test_a_message_from_before_the_watch_is_reported_and_stops_nothing(npu):
    x = paddle.ones([2, 2])
    virtual_npu.refuse("matmul")
    paddle.matmul(x, x)
    reports = []
    with paddle_fused.watch_acl_errors(report=reports.append):
        paddle.matmul(x, x)
    assert len(reports) == 1 and "EZ1001" in reports[0]


def test_a_refusal_on_another_thread_does_not_stop_this_one(npu):
    x = paddle.ones([2, 2])
    with paddle_fused.watch_acl_errors() as watch:
        virtual_npu.refuse("matmul")
        other = threading.Thread(target=paddle.matmul, args=(x, x))
        other.start()
        other.join()
        paddle.add(x, x)
        watch.check()


def test_a_captured_program_is_watched(npu):
    weight = paddle.ones([4, 4])

    @paddle.jit.to_static(full_graph=True)
    def product(x):
        return paddle.matmul(x, weight).sum()

    with paddle_fused.watch_acl_errors():
        product(weight)
        virtual_npu.refuse("matmul")
        with pytest.raises(paddle_fused.AclError, match="run_program"):
            product(paddle.ones([8, 4]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_refusal_in_recomputation_is_named(npu, reentrant):
    x = paddle.ones([4, 128])
    x.stop_gradient = False
    with paddle_fused.watch_acl_errors(), pytest.raises(paddle_fused.AclError, match="CANN refused swiglu;"):
        out = recompute(lambda x: paddle_fused.swiglu(paddle_fused.swiglu(x)), x, use_reentrant=reentrant)
        virtual_npu.refuse("swiglu")
        out.sum().backward()


def test_two_watchers_of_operators_see_all_calls(npu):
    from paddle_fused.operator_hooks import OperatorHooks

    x, first, second = paddle.ones([2, 2]), [], []
    with OperatorHooks(lambda kernel, *_: first.append(kernel)):
        with OperatorHooks(lambda kernel, *_: second.append(kernel)):
            paddle.add(x, x)
        paddle.add(x, x)
    paddle.add(x, x)
    assert (first.count("add"), second.count("add")) == (2, 1)


# Texts of public reports; the second is a line of CANN's log, which names the operator.
REFUSALS = (
    "EZ1001: [PID: 4184975] 2024-12-28-09:52:34.435.298 The k-axis of the two inputs are different",
    "[CheckDtypeValid][360969] errno[161002] OpName:[aclnnMatmul_1] Self dtype DT_FLOAT not support",
    "EZ9999: Inner Error!\nEZ9999: [PID: 775] Cannot find bin of op Range, integral key 0/1/|int64/ND/.",
)
OTHERS = (
    "Fault diagnosis analysis: [0x81078603]node exception;",
    "EL0004: [PID: 12] Failed to allocate memory. Possible Cause: Available memory is insufficient.",
    "W11001: a warning of the graph engine",
)


def test_messages_of_other_parts_are_no_refusals():
    assert all(map(is_refusal, REFUSALS)) and not any(map(is_refusal, OTHERS))
    error = paddle_fused.AclError.of("linear", REFUSALS[2])
    assert error.operator == "linear" and "561xxx" in error.cause and "bin of op Range" in str(error)
