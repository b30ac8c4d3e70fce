"""Safetensors and Paddle's flags."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import paddle


@contextlib.contextmanager
def as_numbers() -> Iterator[None]:
    """Paddle 3.3 with FLAGS_use_stride_kernel=0, as set by PaddleNLP's scripts for NPUs: safetensors fails.

    It views a file as a tensor of numbers, and without that flag ``view_dtype`` has no kernel for the CPU
    ("The kernel with key (CPU, Undefined(AnyLayout), uint8) ... is not registered"). The context switches the
    flag on.
    """
    flag = "FLAGS_use_stride_kernel"
    before = paddle.get_flags(flag)
    paddle.set_flags({flag: True})
    try:
        yield
    finally:
        paddle.set_flags(before)
