"""fused_moe beyond its cases: wrong arguments, and training step by step."""

import re

import numpy as np
import paddle
import pytest

from paddle_fused import fused_moe, use_backend


@pytest.fixture(params=["cpu", "npu:0"])
def device(request):
    paddle.set_device(request.param)
    return request.param


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden": [2, 3, 8]}, "x has shape"),
        ({"gate_up_weight": [4, 8, 5]}, "the gate's I columns"),
        ({"gate_up_weight": [4, 7, 6]}, "x has shape"),
        ({"down_weight": [4, 4, 8]}, "down_weight has shape"),
        ({"router": [6, 3]}, "router has shape"),
        ({"router": [5, 4]}, "router has shape"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 5}, "top_k is 5"),
        ({"top_k": None}, "top_k is None"),
        ({"pair": [6, 2, 4]}, "indices go from 0 to 4"),
        ({"pair": [6, 2, -1]}, "indices go from -1 to"),
        ({"pair": [6, 2, 0], "top_k": 3}, "top_k is 3"),
    ],
    ids=str,
)
def test_wrong_arguments_of_the_layer(change, words):
    paddle.set_device("cpu")
    shapes = {"hidden": [6, 8], "router": [6, 4], "gate_up_weight": [4, 8, 6], "down_weight": [4, 3, 8]}
    tensors = {name: paddle.ones(change.get(name, shape)) for name, shape in shapes.items()}
    router, top_k = tensors["router"], change.get("top_k", 2)
    if "pair" in change:
        rows, columns, expert = change["pair"]
        indices = paddle.zeros([rows, columns], "int64")
        indices[3, 1] = expert
        router, top_k = (paddle.ones([rows, columns]), indices), change.get("top_k")
    with pytest.raises(ValueError, match=re.escape(words)):
        fused_moe(tensors["hidden"], router, tensors["gate_up_weight"], tensors["down_weight"], top_k)


def _train(backend: str, dtype: str, steps: int = 30) -> list[float]:
    """Trains a layer and its router on a fixed mapping; returns the loss of every step."""
    random = np.random.default_rng(0)

    def parameter(*shape):
        values = (random.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)
        return paddle.to_tensor(values, stop_gradient=False)

    router, gate_up, down = parameter(16, 4), parameter(4, 16, 64), parameter(4, 32, 16)
    hidden = paddle.to_tensor(random.standard_normal((64, 16)).astype(np.float32))
    target = paddle.to_tensor(np.sin(random.standard_normal((64, 16))).astype(np.float32))
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=[router, gate_up, down])
    losses = []
    for _ in range(steps):
        with use_backend(backend, strict=True):
            out = fused_moe(
                hidden.astype(dtype), hidden @ router, gate_up.astype(dtype), down.astype(dtype), top_k=2
            )
        loss = (out.astype("float32") - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def test_training_follows_the_composed_layer_step_by_step(device):
    composed = _train("composed", "float32")
    assert composed[-1] < composed[0] / 2
    for backend in ("native", "ascend") if device.startswith("npu") else ("native",):
        np.testing.assert_allclose(_train(backend, "float32"), composed, rtol=1e-3)


def test_training_in_16_bits_reaches_the_loss_of_32():
    paddle.set_device("npu:0")
    wide, composed = _train("composed", "float32"), _train("composed", "bfloat16")
    apart = np.abs(np.subtract(composed, wide)).max()
    for backend in ("native", "ascend"):
        assert np.abs(np.subtract(_train(backend, "bfloat16"), wide)).max() <= 2 * apart, backend


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["SSE4_2", pytest.param("AVX2", marks=pytest.mark.slow)])
def test_as_accurate_as_composed_however_mkl_sums(run_python, instructions):
    """The baseline sums with MKL, whose order depends on the processor."""
    environment = {"PADDLE_FUSED_ISA": "baseline", "MKL_ENABLE_INSTRUCTIONS": instructions}
    result = run_python("-m", "paddle_fused.parity", "fused_moe", **environment)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
