"""Under auto-parallel, Paddle's gradient of an operator with two outputs needs the gradients of both."""

import textwrap

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
    import paddle, paddle_fused
    import paddle.distributed as dist
    from paddle_fused import native, use_backend

    mesh = dist.ProcessMesh([0], dim_names=["rows"])
    def tensor(*shape):
        made = dist.shard_tensor(paddle.rand(shape) + 0.5, mesh, [dist.Replicate()])
        made.stop_gradient = False
        return made
    x, residual, weight = tensor(4, 8), tensor(4, 8), tensor(8)

    def add_rms_norm():
        return paddle_fused.add_rms_norm(x, residual, weight)
    def dropout_add_layer_norm():
        return paddle_fused.dropout_add_layer_norm(x, residual, weight, None, 0.0, 1e-5, prenorm=True)
    def without_the_patch():
        return native.call("pf_add_rms_norm", x, residual, weight, 1e-5)[:2]

    with use_backend("native", strict=True):
        for wanted in (0, 1):
            {function}()[wanted].sum().backward()
            assert x.grad is not None and residual.grad is not None
    print("both")
"""


@pytest.mark.parametrize("function", ["add_rms_norm", "dropout_add_layer_norm"])
def test_one_of_two_outputs_is_enough(run_python, function):
    result = run_python("-c", textwrap.dedent(PROGRAM.format(function=function)))
    assert result.returncode == 0, result.stderr[-3000:]
    assert "both" in result.stdout


def test_paddle_still_needs_the_patch(run_python):
    """When this fails, native.with_every_gradient can go."""
    program = textwrap.dedent(PROGRAM.format(function="without_the_patch"))
    assert run_python("-c", program).returncode < 0  # ended by a signal
