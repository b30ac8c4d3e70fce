"""Rotary tables while a program is captured."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def whole_tables(model) -> Iterator[None]:
    """Make the rotary layers return their whole tables, whatever length is requested.

    They extend their tables for longer rows, even while a program is captured, which would leave the model
    with the program's variables as tables.
    """
    layers = [layer for layer in model.sublayers() if hasattr(layer, "cos_cached")]
    for layer in layers:
        layer.__dict__["forward"] = types.MethodType(_tables, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _tables(self, x, seq_len=None):
    return self.cos_cached.cast(x.dtype), self.sin_cached.cast(x.dtype)
