"""Patches for defects of Paddle's operators."""

from __future__ import annotations

import functools

import paddle

from paddle_fused import paddle_release


def apply() -> None:
    """Apply those that the installed version needs; a second call changes nothing."""
    if paddle_release.before(3, 2):
        fix_where_default_dtype()


@functools.cache
def fix_where_default_dtype() -> None:
    """Paddle 3.0 and 3.1: ``paddle.where(mask, 0.0, -1.0)`` is float64, which a card runs on its AICPU.

    PaddleNLP makes its attention masks this way. With the patch, as in 3.2, a Python float has the default
    dtype.
    """
    where = paddle.where

    @functools.wraps(where)
    def typed(condition, x=None, y=None, *arguments, **named):
        return where(condition, _in_default_dtype(x), _in_default_dtype(y), *arguments, **named)

    paddle.where = typed


def _in_default_dtype(choice):
    return paddle.full([1], choice, paddle.get_default_dtype()) if isinstance(choice, float) else choice
