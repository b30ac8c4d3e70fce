"""``paddle.amp.auto_cast`` for functions that replace operators of its white list."""

from __future__ import annotations

import paddle


def cast_inputs(*tensors) -> tuple:
    """The inputs of a matmul or of attention, cast to the dtype of the active auto_cast, if there is one."""
    tracer = paddle.base.framework._dygraph_tracer()
    if tracer is None or tracer._amp_level == paddle.base.core.AmpLevel.O0:
        return tensors
    return tuple(tensor.astype(tracer._amp_dtype) for tensor in tensors)
