"""Gated activations under torch_npu's names."""

import paddle

from paddle_fused.compat import npu_geglu, npu_swiglu


def x(*shape, dtype="float32", gradient=False):
    tensor = paddle.ones(shape, dtype)
    tensor.stop_gradient = not gradient
    return tensor


CALLS = [
    ("swiglu.dtype", lambda: npu_swiglu(x(4, 32, dtype="float64"))),
    ("swiglu.even", lambda: npu_swiglu(x(4, 31))),
    ("swiglu.even", lambda: npu_swiglu(x(3, 32), 0)),
    ("swiglu.dim", lambda: npu_swiglu(x(4, 32), 2)),
    ("swiglu.dim", lambda: npu_swiglu(x(4, 32), -3)),
    ("geglu.dtype", lambda: npu_geglu(x(4, 32, dtype="float64"))),
    ("geglu.even", lambda: npu_geglu(x(4, 31))),
    ("geglu.dim", lambda: npu_geglu(x(4, 32), 2)),
    ("geglu.approximate", lambda: npu_geglu(x(4, 32), approximate=2)),
    ("swiglu.grad_alignment", lambda: npu_swiglu(x(4, 20, gradient=True))),
]
