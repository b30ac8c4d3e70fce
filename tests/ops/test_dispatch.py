"""The dispatcher: order, forcing, reasons, the record of what ran."""

import paddle
import pytest

import paddle_fused
from paddle_fused import BackendError, dispatch_log, reset_dispatch_log, use_backend

pytestmark = pytest.mark.sampled


@pytest.fixture(autouse=True)
def _fresh():
    reset_dispatch_log()


def _tensors(place="cpu", dtype="float32"):
    paddle.set_device(place)
    return paddle.ones([2, 64], dtype), paddle.ones([64], dtype)


def test_the_plugin_s_operator_runs_on_npu():
    paddle_fused.rms_norm(*_tensors("npu:0"))
    (ran,) = dispatch_log()
    assert ran == ("rms_norm", "ascend", "rms_norm_npu", "float32", 1, {}, ())


def test_the_host_kernel_runs_on_the_cpu_place_and_the_record_says_why_not_ascend():
    for _ in range(3):
        paddle_fused.rms_norm(*_tensors("cpu"))
    (ran,) = dispatch_log()
    assert (ran.backend, ran.mode, ran.count) == ("native", "pf_rms_norm", 3)
    assert ran.refused == {"ascend": "the tensors are on cpu, not on npu"}


def test_a_preferred_backend_that_refuses_is_recorded_and_strict_makes_it_an_error():
    x, weight = _tensors("cpu")
    with use_backend("ascend"):
        paddle_fused.rms_norm(x, weight)
    assert [ran.backend for ran in dispatch_log()] == ["native"]
    with use_backend("ascend", strict=True), pytest.raises(BackendError, match="allows no other") as caught:
        paddle_fused.rms_norm(x, weight)
    assert caught.value.reasons == {"ascend": "the tensors are on cpu, not on npu"}
    assert isinstance(caught.value, ValueError)


def test_strict_auto_refuses_composed_with_every_reason():
    x, weight = _tensors("cpu", "float64")
    assert paddle_fused.rms_norm(x, weight).dtype == paddle.float64
    assert dispatch_log()[0].backend == "composed"
    with use_backend("auto", strict=True), pytest.raises(BackendError) as caught:
        paddle_fused.rms_norm(x, weight)
    assert set(caught.value.reasons) == {"ascend", "native"}


def test_use_backend_as_a_call_and_its_end():
    x, weight = _tensors("cpu")
    chosen = use_backend("composed")
    paddle_fused.rms_norm(x, weight)
    with chosen:
        pass
    paddle_fused.rms_norm(x, weight)
    assert [ran.backend for ran in dispatch_log()] == ["composed", "native"]


def test_unknown_backend():
    with pytest.raises(ValueError, match=r"'gpu' .*: auto, ascend, native, composed"):
        use_backend("gpu")


def test_strict_virtual_npu_keeps_the_host_kernels_away(run_program):
    result = run_program(
        """
        import paddle, paddle_fused
        import paddle_fused.native
        from paddle_fused import use_backend
        paddle.set_device("npu:0")
        x, weight = paddle.ones([2, 64]), paddle.ones([64])
        paddle_fused.rms_norm(x, weight)
        assert paddle_fused.dispatch_log()[0].backend == "ascend"
        with use_backend("native", strict=True):
            try:
                paddle_fused.rms_norm(x, weight)
            except ValueError as error:
                assert "VIRTUAL_NPU_STRICT=1" in str(error), error
            else:
                raise SystemExit("native ran")
        try:
            paddle_fused.native.call("pf_rms_norm", x, weight, 1e-6)
        except NotImplementedError as error:
            assert "pf_rms_norm is an operator of the host" in str(error), error
        else:
            raise SystemExit("the operator ran")
        """,
        VIRTUAL_NPU_STRICT="1",
    )
    assert result.returncode == 0, result.stderr


def test_host_operators_are_on_the_record_of_the_virtual_npu():
    import virtual_npu

    x, weight = _tensors("npu:0")
    virtual_npu.reset_kernel_record()
    with use_backend("native", strict=True):
        paddle_fused.rms_norm(x, weight)
    assert virtual_npu.kernel_record() == [("pf_rms_norm", "float32", "host", 1, "")]


def test_a_user_s_captured_model_with_gradient():
    def model(x, weight):
        if x.shape[0] > 1:
            x = x * 2
        return paddle_fused.rms_norm(x, weight).sum()

    x, weight = _tensors("cpu")
    weight.stop_gradient = False
    paddle.jit.to_static(model, full_graph=True)(x, weight).backward()
    captured = weight.grad.numpy()
    weight.clear_gradient()
    model(x, weight).backward()
    assert (captured == weight.grad.numpy()).all()
    assert {ran.backend for ran in dispatch_log()} == {"native"}


@pytest.mark.parametrize("full_graph", [True, False])
def test_attention_in_a_captured_program(full_graph):
    from paddle_fused import masks

    mask = masks.causal() & masks.band(3, None)

    def model(x):
        return paddle_fused.flash_attention(x, x, x, mask) + 1

    paddle.set_device("cpu")
    x = paddle.randn([1, 9, 2, 16])
    captured = paddle.jit.to_static(model, full_graph=full_graph)(x)
    assert (captured.numpy() == model(x).numpy()).all()


@pytest.mark.slow
def test_the_first_call_of_a_process_may_be_captured(run_python):
    """It reads the libraries and the contracts, which SOT must not translate."""
    program = """
import paddle, paddle_fused
from paddle_fused import masks

mask = masks.causal()

def model(x):
    return paddle_fused.flash_attention(x, x, x, mask)

paddle.set_device("cpu")
x = paddle.randn([1, 9, 2, 16])
captured = paddle.jit.to_static(model, full_graph=False)(x)
print(bool((captured == model(x)).all()))
"""
    done = run_python("-c", program)
    assert done.stdout.split() == ["True"], done.stdout + done.stderr
