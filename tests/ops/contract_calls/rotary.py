"""Rotary position embedding: the public functions."""

import paddle

from paddle_fused import apply_rotary, rotary_mul
from paddle_fused.compat import npu_rotary_mul


def ones_of(*shape, dtype="float32"):
    """An expanded number: a large tensor that takes no memory."""
    return paddle.ones([1] * len(shape), dtype).expand(shape)


def rotate(x=(2, 8, 4, 64), angles=None, mode="half", dtype="float32", angle_dtype=None, **keywords):
    angle = ones_of(*(angles or (1, x[1], 1, x[-1])), dtype=angle_dtype or dtype)
    return npu_rotary_mul(ones_of(*x, dtype=dtype), angle, angle, mode, **keywords)


def angle_gradient():
    cos = ones_of(1, 8, 1, 64)
    cos.stop_gradient = False
    return npu_rotary_mul(ones_of(40, 8, 30, 64), cos, cos)


CALLS = [
    ("rotary.dtype", lambda: rotate(dtype="float64")),
    ("rotary.same_dtype", lambda: rotate(angle_dtype="bfloat16")),
    (
        "rotary.same_dtype",
        lambda: rotary_mul(ones_of(1, 2, 1, 4), *[ones_of(1, 2, 1, 4, dtype="float16")] * 2),
    ),
    ("rotary.mode", lambda: rotate(mode="quarter")),
    ("rotary.mode", lambda: rotary_mul(*[ones_of(1, 2, 1, 4)] * 3, mode="quarter")),
    ("rotary.dimensions", lambda: rotate((8, 64), (8, 64))),
    ("rotary.dimensions", lambda: rotate((8, 4, 64), (8, 1, 64))),
    ("rotary.layout", lambda: rotary_mul(*[ones_of(8, 64)] * 3)),
    ("rotary.head_dim", lambda: rotate((2, 8, 4, 63))),
    ("rotary.head_dim", lambda: rotate((2, 8, 4, 896))),
    ("rotary.batch_heads", lambda: rotate((1000, 8, 4, 64))),
    ("rotary.batch_heads", lambda: rotate((1, 8, 1000, 64))),
    ("rotary.interleaved_rows", lambda: rotate((40, 8, 30, 64), mode="interleave")),
    ("rotary.angles", lambda: rotate(angles=(1, 5, 1, 64))),
    ("rotary.angles", lambda: rotate(angles=(1, 8, 4, 64))),
    ("rotary.angles", lambda: rotate(angles=(2, 8, 1, 64), mode="interleave")),
    (
        "rotary.angles",
        lambda: npu_rotary_mul(ones_of(2, 8, 4, 64), ones_of(1, 8, 1, 64), ones_of(2, 8, 1, 64)),
    ),
    ("rotary.angle_gradient_rows", angle_gradient),
    ("rotary.rotate", lambda: rotate(rotate=ones_of(64, 64))),
    (
        "rotary.same_dtype",
        lambda: apply_rotary(*[ones_of(1, 2, 1, 4)] * 2, *[ones_of(2, 4, dtype="float16")] * 2),
    ),
]
