"""Calls of flash_attention and npu_fusion_attention that the attention tests share.

Shapes: B batch, S sequence, T tokens, N heads, D head size.
"""

import numpy as np
import paddle

from paddle_fused import use_backend
from paddle_fused.ops.attention.cases import FROM_BNSD

LAYOUTS = ("BSND", "BNSD", "BSH", "SBH")


def place_of(device):
    return paddle.CustomPlace("npu", 0) if device == "npu" else paddle.CPUPlace()


def tensor(array, dtype="float32", device="cpu", requires_grad=True):
    array = np.asarray(array)
    if array.dtype.kind != "f":
        return paddle.to_tensor(array, place=place_of(device))
    x = paddle.to_tensor(array, dtype="float32" if dtype != "float64" else dtype, place=place_of(device))
    x = x.astype(dtype)
    x.stop_gradient = not requires_grad
    return x


def values(x):
    x = x.detach()
    return (x if x.dtype == paddle.float64 else x.astype("float32")).cpu().numpy().astype(np.float64)


def outputs_and_gradients(call, arrays, dtype="float32", device="cpu", backend="native"):
    """The output of ``call(*tensors)`` and the gradients of its inputs for a random loss, in float64
    arrays."""
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    tensors = [tensor(array, dtype, device) for array in arrays]
    with use_backend(backend, strict=True):
        out = call(*tensors)
        weight = np.random.default_rng(99).standard_normal(out.shape)
        gradients = paddle.grad(out, tensors, tensor(weight, dtype, device, False))
    return [values(x) for x in (out, *gradients)]


def random_batch(layout, lengths, heads=(4, 2), dims=(8, 8), batch=2, seed=0):
    """Query, key and value in a layout, float64 rounded to float32."""
    random = np.random.default_rng(seed)
    shapes = (
        (batch, heads[0], lengths[0], dims[0]),
        (batch, heads[1], lengths[1], dims[0]),
        (batch, heads[1], lengths[1], dims[1]),
    )
    return [FROM_BNSD[layout](random.standard_normal(shape).astype(np.float32)) for shape in shapes]


def random_tokens(query_tokens, key_tokens, heads=(4, 2), dim=8, seed=0):
    """Query, key and value in layout TND."""
    random = np.random.default_rng(seed)
    shapes = (query_tokens, heads[0], dim), (key_tokens, heads[1], dim), (key_tokens, heads[1], dim)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_same_attention(actual, truth, what):
    """float32 against float64: far above what rounding does, far below what one wrong key does.

    How accurate the operators are is measured by test_operator_cases.
    """
    for name, x, t in zip(("out", "dq", "dk", "dv"), actual, truth, strict=True):
        assert x.shape == t.shape, (what, name)
        error, largest = np.abs(x - t).max(initial=0), np.abs(t).max(initial=1)
        assert error <= 1e-5 * largest, f"{what}, {name}: error {error:.3g}"
