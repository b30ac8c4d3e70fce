"""Outputs too large for the last-level cache bypass it; their bits are those of small calls, which do not.

The large call reads and writes a tensor at least, which together fill the largest cache that Linux knows of;
no more is taken, since some servers' caches hold half a gigabyte. The small ones have its rows.
"""

import os
from pathlib import Path

import paddle
import pytest

import paddle_fused

pytestmark = pytest.mark.sampled

WIDTH = 8192
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 1 << 10, "M": 1 << 20}


def last_cache() -> int:
    """Bytes of the largest cache: 32 MiB if unknown, at most 16 MiB per core (kernels/cache.cc)."""
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    largest = max((int(size[:-1]) * UNITS[size[-1]] for size in sizes), default=32 << 20)
    return min(largest, (os.cpu_count() or 1) << 24)


def swiglu(x, y, weight):
    return (paddle_fused.swiglu(x, y),)


def rms_norm(x, y, weight):
    return (paddle_fused.rms_norm(x, weight),)


def add_rms_norm(x, y, weight):
    return paddle_fused.add_rms_norm(x, y, weight)


def dropout_add_layer_norm(x, y, weight):
    return paddle_fused.dropout_add_layer_norm(x, y, weight, weight, 0.0, 1e-5, prenorm=True)


def rotary_mul(x, y, weight):
    angles = weight[:128].reshape([1, 1, 1, 128])
    rotated = paddle_fused.rotary_mul(x.reshape([1, -1, WIDTH // 128, 128]), angles, angles)
    return (rotated.reshape(x.shape),)


OPERATORS = (swiglu, rms_norm, add_rms_norm, dropout_add_layer_norm, rotary_mul)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_large_calls_equal_small_ones(operator, dtype):
    paddle.set_device("cpu")
    paddle.seed(0)
    x, y = (paddle.randn([16, WIDTH]).astype(dtype) for _ in range(2))
    weight = paddle.randn([WIDTH]).astype(dtype)
    copies = -(-last_cache() // (2 * x.numel().item() * x.element_size()))

    def outputs_and_gradient(*tensors):
        x, y = (paddle.concat(tensor) for tensor in tensors)
        x.stop_gradient = y.stop_gradient = False
        outputs = operator(x, y, weight)
        return [t.numpy() for t in (*outputs, *paddle.grad(outputs, [x], [t.detach() for t in outputs]))]

    small = outputs_and_gradient([x], [y])
    large = outputs_and_gradient([x] * copies, [y] * copies)
    for few, many in zip(small, large, strict=True):
        assert (many.reshape([copies, *few.shape]) == few).all()
