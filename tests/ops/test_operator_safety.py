"""No invalid call of a host operator reads foreign memory or ends the process."""

import numpy as np
import paddle
import pytest
from custom_operator import run
from paddle.utils import flatten, map_structure, pack_sequence_as

import virtual_npu
from paddle_fused import native, registry, use_backend

pytestmark = pytest.mark.sampled


def _float(*shape):
    tensor = paddle.rand(shape)
    tensor.stop_gradient = False
    return tensor


def _dropout(residual=True, dropout=0.0):
    has = 1 if residual else 0
    nothing = paddle.zeros([0])
    return [
        _float(4, 8), _float(4, 8) if residual else nothing, _float(8), nothing, nothing, nothing,
        paddle.to_tensor([1, 2], dtype="int64"), has, True, dropout, 1e-6, False,
    ]  # fmt: skip


def _nothing_for_none(argument):
    return paddle.zeros([0]) if argument is None else argument


def _holds_tensors(argument) -> bool:
    """Whether an operator's argument is a tensor, a missing one, or a list of tensors."""
    return argument is None or hasattr(argument, "place") or (isinstance(argument, list) and argument != [])


def host_calls(operator) -> dict[str, tuple[list, list]]:
    """The host operators that the cases of ``operator`` call: tensors and attributes of a call, by name."""
    calls = {}

    def call(name, *arguments):
        count = sum(map(_holds_tensors, arguments))
        calls.setdefault(name, (list(map(_nothing_for_none, arguments[:count])), list(arguments[count:])))
        return upstream(name, *arguments)

    upstream, native.call = native.call, call
    try:
        with use_backend("native", strict=True):
            for case in operator.cases():
                prepared = {
                    name: paddle.to_tensor(array, "float32" if array.dtype.kind == "f" else array.dtype)
                    for name, array in case.arrays(np.random.default_rng(0)).items()
                    if array is not None
                }
                for name in case.gradients:
                    prepared[name].stop_gradient = False
                case.call(prepared)
    finally:
        native.call = upstream
    assert calls, f"{operator.name} has no case for the host operators"
    return calls


# The others are checked below, and in tests/ops/attention/test_attention_operator_inputs.py: attention's two
# functions call one host operator.
OPERATORS = [
    operator
    for operator in registry.operators().values()
    if operator.name not in ("fused_adamw", "flash_attention", "flashmask_attention")
]
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


def _fresh(tensors):
    """The same values, detached from the graph that computed them."""

    def fresh(tensor):
        copy = tensor.detach().clone()
        copy.stop_gradient = tensor.stop_gradient
        return copy

    return map_structure(fresh, tensors)


WITHOUT_GRADIENT = ("pf_linear_cross_entropy_with_backward",)  # its outputs are gradients


@pytest.mark.parametrize("shape", [[1], [2, 3, 5, 7, 1], [1000, 8]], ids=str)
@every_operator
def test_a_gradient_of_another_shape_is_refused(device, operator, shape):
    for name, (arguments, attributes) in host_calls(operator).items():
        if name in WITHOUT_GRADIENT:
            continue
        tensors = _fresh(arguments)
        inputs = [tensor for tensor in flatten(tensors) if not tensor.stop_gradient]
        outputs = [out for out in native.call(name, *tensors, *attributes) if not out.stop_gradient]
        used = outputs[:2] if name == "pf_linear_cross_entropy" else outputs[:1]
        with pytest.raises(ValueError, match=r"the gradient of \w+ has shape"):
            paddle.grad(used, inputs, [paddle.ones(shape)] * len(used))


@every_operator
def test_a_missing_tensor_is_refused(device, operator):
    for name, (tensors, attributes) in host_calls(operator).items():
        for missing in range(len(flatten(tensors))):
            kept = [None if i == missing else tensor for i, tensor in enumerate(flatten(_fresh(tensors)))]
            spoiled = pack_sequence_as(tensors, kept)
            with pytest.raises(ValueError, match="is missing"):
                paddle._C_ops._run_custom_op(name, *spoiled, *attributes)


def test_a_missing_state_of_adamw_is_refused(device):
    one_element = paddle.ones([1])
    state = [paddle.ones([4]) for _ in range(4)]  # param, grad, moment1, moment2
    tensors = [state[0], state[1], one_element, state[2], state[3], None, one_element, one_element, None]
    for missing in (0, 1, 2, 3, 4, 6, 7):
        spoiled = [None if i == missing else tensor for i, tensor in enumerate(tensors)]
        with pytest.raises(ValueError, match="is missing"):
            paddle._C_ops._run_custom_op("pf_adamw_", *spoiled, 0.1, 0.001, 1e-8, 1.0, 0.0, False)


@pytest.mark.parametrize("operator", ["rms_norm", "add_rms_norm"])
def test_a_loss_of_rstd_alone_is_refused(device, operator):
    ((name, (tensors, attributes)),) = host_calls(registry.find(operator)).items()
    rstd = native.call(name, *_fresh(tensors), *attributes)[-1]
    with pytest.raises(ValueError, match="Detach rstd"):
        rstd.sum().backward()


def test_gradients_of_what_is_missing_are_zeros(device):
    arguments = _dropout(residual=False)
    arguments[4] = absent = _float(8)
    native.call("pf_dropout_add_norm", *arguments)[0].sum().backward()
    assert absent.grad.abs().max().item() == 0.0

    x, cos, sin = _float(2, 4, 1, 8), _float(1, 4, 1, 8), _float(1, 4, 1, 8)
    native.call("pf_rotary", x, cos, sin, False, False)[0].sum().backward()
    assert cos.grad.abs().max().item() == 0.0 and sin.grad.abs().max().item() == 0.0


def test_sizes_whose_product_overflows_are_refused(device):
    x, weight = paddle.zeros([2**32, 0]), paddle.zeros([1, 0, 2**32 + 1])
    with pytest.raises(ValueError, match="2\\^63 bytes"):
        native.call("pf_grouped_matmul", [x, weight], paddle.to_tensor([2**32], dtype="int64"), 0, True, True)


def test_refused_seeds_do_not_count(on_npu):
    arguments = _dropout(dropout=0.5)
    arguments[6] = paddle.zeros([2])
    virtual_npu.reset_kernel_record()
    with pytest.raises(ValueError, match="seed"):
        native.call("pf_dropout_add_norm", *arguments)
    assert "pf_dropout_add_norm" not in [row.name for row in virtual_npu.kernel_record()]


CAPTURED = """
import paddle
from paddle_fused import native

paddle.set_device("cpu")

def outcome(call):
    try:
        call(paddle.ones([]))
    except ValueError:
        return "refused"
    return "ran"
"""
CAPTURED_CALL = """
def call(x):
    return native.call("{operator}", {tensors}, *{attributes})[0]

print("{operator}", outcome(call), outcome(paddle.jit.to_static(call, full_graph=True)))
"""


@pytest.mark.slow
def test_a_wrong_captured_program_is_refused_when_it_runs(run_program, on_cpu):
    """As in dygraph, in a separate process, which Paddle ends if shape inference throws."""
    calls = {
        name: CAPTURED_CALL.format(
            operator=name,
            tensors=", ".join(f"[x] * {len(t)}" if isinstance(t, list) else "x" for t in tensors),
            attributes=attributes,
        )
        for operator in OPERATORS
        for name, (tensors, attributes) in host_calls(operator).items()
    }
    dweight = "pf_grouped_matmul_dweight"  # no case calls it
    calls[dweight] = CAPTURED_CALL.format(operator=dweight, tensors="x, x, x", attributes=[0])
    result = run_program("".join([CAPTURED, *calls.values()]))
    assert result.returncode == 0, result.stderr[-3000:]
    words = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in words] == list(calls)
    assert all(in_dygraph == captured for _, in_dygraph, captured in words), words
    assert sum(in_dygraph == "refused" for _, in_dygraph, _ in words) >= 10, words


PLUGIN_CALLS = {  # the tensors that are differentiated, and the call's other arguments
    "rms_norm_npu": lambda: ([_float(4, 128), _float(128)], [1e-6]),
    "fused_rope": lambda: ([_float(1, 4, 1, 128)], [_constant(1, 4, 1, 128), _constant(1, 4, 1, 128)]),
    "flash_attention_npu": lambda: (
        [_float(1, 16, 1, 64).astype("float16") for _ in range(3)],
        [None, None, None, None, 0.0, True, False, False, False, False],
    ),
}


def _constant(*shape):
    return paddle.ones(shape)


@pytest.mark.parametrize("operator", PLUGIN_CALLS)
def test_the_plugins_operators_refuse_a_gradient_of_another_shape(on_npu, operator):
    tensors, others = PLUGIN_CALLS[operator]()
    out = run(operator, *tensors, *others)[0]
    with pytest.raises(ValueError, match=r"the gradient of \w+ has shape"):
        paddle.grad([out], tensors, [paddle.ones([1], out.dtype)])


def test_the_plugins_operators_refuse_a_missing_tensor(on_npu):
    with pytest.raises(ValueError, match="gamma is missing"):
        run("rms_norm_npu", paddle.ones([4, 128]), None, 1e-6)
