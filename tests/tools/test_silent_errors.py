"""Operators that fail without an exception stop a run: CANN refuses them, or their results are wrong."""

import numpy as np
import paddle
import pytest
import run_inputs
from paddle.distributed.fleet.utils import recompute
from places import ROOT

import paddle_fused
import virtual_npu
from llm_npu.training import metrics
from paddle_fused import dispatch, registry
from paddle_fused.acl_errors import recent_message

SCRIPT = ROOT / "scripts/run_llama_npu.py"
SHORT = ("--max_seq_length", "32", "--max_steps", "3", "--logging_steps", "1", "--do_eval", "false")
CHECKS = ("--check_acl_errors", "1", "--verify_operators")


@pytest.fixture
def npu():
    before = paddle.device.get_device()
    paddle.device.set_device("npu:0")
    yield
    virtual_npu.refuse("matmul", 0)
    recent_message()
    paddle.device.set_device(before)


def tensors_of(case, dtype: str) -> dict[str, paddle.Tensor]:
    tensors = {}
    for name, array in case.arrays(np.random.default_rng(3)).items():
        if array is None:
            continue
        if np.issubdtype(array.dtype, np.floating):
            kind = "float32" if name in case.keep_float32 else dtype
            tensors[name] = paddle.to_tensor(array.astype(np.float32)).astype(kind).detach()
        else:
            tensors[name] = paddle.to_tensor(array)
        tensors[name].stop_gradient = name not in case.gradients
    return tensors


@pytest.mark.sampled(6)
@pytest.mark.parametrize("backend", ["ascend", "native"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("operator", sorted(registry.operators()))
def test_right_operators_agree_with_their_definition(npu, operator, dtype, backend):
    for case in registry.find(operator).cases()[:4]:
        if dtype not in case.dtypes:
            continue
        tensors = tensors_of(case, dtype)
        with paddle_fused.verify_operators() as verification, paddle_fused.use_backend(backend):
            case.call(tensors)
        assert verification.mismatches == []


def swiglu_inputs(seed: int) -> list[paddle.Tensor]:
    """Other numbers for each test: memory may hold an earlier result."""
    random = np.random.default_rng(seed)
    tensors = [paddle.to_tensor(random.standard_normal((6, 64), np.float32)).astype("bfloat16") for _ in "xy"]
    tensors = [tensor.detach() for tensor in tensors]
    for tensor in tensors:
        tensor.stop_gradient = False
    return tensors


@pytest.mark.parametrize(
    ("kernel", "call", "tensor"),
    [
        pytest.param("swiglu", 1, "output", id="the result of the program"),
        pytest.param("swiglu", 2, "output", id="the result of another call"),
        pytest.param("swiglu_grad", 1, "gradient of ", id="a gradient"),
    ],
)
def test_a_wrong_result_is_found(npu, kernel, call, tensor):
    inputs = swiglu_inputs(len(kernel) + call)
    virtual_npu.refuse(kernel, call)
    with paddle_fused.verify_operators() as verification:
        paddle_fused.swiglu(*inputs)
        paddle_fused.swiglu(*inputs)  # is not compared again
    (verdict,) = verification.verdicts
    assert not verdict.agrees and verdict.operator == "swiglu" and verdict.tensor.startswith(tensor)
    assert "[6, 64] bfloat16" in str(verdict) and verdict.mode in str(verdict)


def test_a_wrong_step_of_the_optimizer_is_found(npu):
    weight = paddle.ones([8, 8]).astype("bfloat16")
    weight = paddle.base.framework.EagerParamBase.from_tensor(weight)
    optimizer = paddle_fused.FusedAdamW(1e-3, parameters=[weight], multi_precision=True)
    for refused in (False, True):
        if refused:
            virtual_npu.refuse("adamw")
        (weight.astype("float32") * 2).sum().backward()
        with paddle_fused.verify_operators() as verification:
            optimizer.step()
        optimizer.clear_grad()
        assert [verdict.tensor for verdict in verification.mismatches] == ["master"] * refused


def test_the_program_does_not_notice_the_comparison(npu):
    def run():
        paddle.seed(3)
        paddle_fused.reset_dispatch_log()
        x = paddle.randn([4, 64]).astype("bfloat16").detach()
        x.stop_gradient = False
        out = paddle_fused.rms_norm(x, paddle.ones([64], "bfloat16"))
        (out.astype("float32") * paddle.rand([4, 64])).sum().backward()
        return out.astype("float32").numpy(), x.grad.astype("float32").numpy(), paddle_fused.dispatch_log()

    plain = run()
    with paddle_fused.verify_operators() as verification:
        compared = run()
    assert len(verification.verdicts) == 1 and verification.mismatches == [] and not dispatch._observers
    assert all((a == b).all() for a, b in zip(plain[:2], compared[:2], strict=True))
    assert plain[2] == compared[2]


def test_random_calls_are_reported_as_not_compared(npu):
    x = paddle.ones([4, 64])
    with paddle_fused.verify_operators() as verification:
        paddle_fused.dropout_add_rms_norm(x, x, paddle.ones([64]), None, 0.5, 1e-6)
    (verdict,) = verification.verdicts
    assert verdict.skipped and verdict.agrees and "not compared" in str(verdict)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_recomputed_call_is_compared(npu, reentrant, is_wrong):
    x, y = swiglu_inputs(11 + is_wrong)
    with paddle_fused.verify_operators() as verification:
        if is_wrong:
            virtual_npu.refuse("swiglu")
        out = recompute(paddle_fused.swiglu, x, y, use_reentrant=reentrant)
        out.astype("float32").sum().backward()
    (verdict,) = verification.verdicts
    assert verdict.agrees != is_wrong and not verdict.skipped


def test_a_call_of_a_captured_program_is_reported_as_not_compared(npu):
    with paddle_fused.verify_operators() as verification:
        paddle.jit.to_static(paddle_fused.swiglu, full_graph=True)(*swiglu_inputs(7))
    (verdict,) = verification.verdicts
    assert "captured" in verdict.skipped


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    pytest.importorskip("paddlenlp")
    return [*run_inputs.words(run_inputs.inputs(tmp_path_factory.mktemp("inputs"))), *SHORT]


def losses(folder) -> list[float]:
    return [record["loss"] for record in metrics.read(folder / metrics.FILE) if "loss" in record]


@pytest.mark.slow
def test_the_losses_of_a_run_are_those_without_the_checks(run_python, words, tmp_path):
    for name, more in (("plain", ()), ("checked", CHECKS)):
        done = run_python(SCRIPT, *words, *more, "--output_dir", tmp_path / name)
        assert done.returncode == 0, done.stderr
    assert "match their definitions" in done.stdout
    assert losses(tmp_path / "plain") == losses(tmp_path / "checked") != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        ("cross_entropy_with_softmax_grad", "step 1: CANN refused cross_entropy_with_softmax_grad"),
        ("swiglu_grad:3", "step 2: CANN refused swiglu_grad"),
        ("adamw", "step 1: CANN refused adamw"),
    ],
)
def test_a_run_stops_at_the_refused_operator(run_python, words, tmp_path, kernel, text):
    arguments = [SCRIPT, *words, "--check_acl_errors", "1", "--output_dir", tmp_path / "out"]
    done = run_python(*arguments, VIRTUAL_NPU_REFUSE=kernel)
    assert done.returncode == 2
    assert text in done.stderr and "EZ1001 (161xxx)" in done.stderr and "operator-arguments" in done.stderr
    assert not list((tmp_path / "out").glob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["", "matmul_grad"])
def test_two_ranks(run_python, words, tmp_path, kernel):
    arguments = [SCRIPT, *words, *CHECKS, "--nproc", "2", "--output_dir", tmp_path / "out"]
    done = run_python(*arguments, VIRTUAL_NPU_REFUSE=kernel)
    if kernel:
        assert done.returncode == 2 and "step 1: CANN refused matmul_grad" in done.stderr
    else:
        assert done.returncode == 0 and done.stdout.count("match their definitions") == 1


@pytest.mark.slow
def test_a_kernel_that_does_not_run_through_aclnn_cannot_be_refused(run_python, words, tmp_path):
    done = run_python(SCRIPT, *words, "--output_dir", tmp_path / "out", VIRTUAL_NPU_REFUSE="squared_l2_norm")
    assert done.returncode == 2 and "VIRTUAL_NPU_REFUSE" in done.stderr


@pytest.mark.slow
def test_a_run_without_the_checks_continues_with_garbage(run_python, words, tmp_path):
    done = run_python(SCRIPT, *words, "--output_dir", tmp_path / "out", VIRTUAL_NPU_REFUSE="adamw")
    assert done.returncode == 0


@pytest.mark.slow
def test_acceptance_names_the_refused_operator(run_python, tmp_path):
    check = ["--device", "virtual_npu", "--only", "silent_errors", "--output_dir", tmp_path / "result"]
    done = run_python(ROOT / "scripts/accept_card.py", *check, VIRTUAL_NPU_REFUSE="swiglu_grad")
    assert done.returncode == 1 and "swiglu_grad" in done.stdout and "EZ1001" in done.stdout
