"""``paddle.amp.auto_cast`` for functions that replace operators of its white list."""

from __future__ import annotations

import paddle


def cast_inputs(*tensors) -> tuple:
    """The inputs of a matmul or of attention, cast to the dtype of the active auto_cast, if there is one."""
    core, framework = paddle.base.core, paddle.base.framework
    # A program that is being captured has its own state.
    state = core._get_amp_attrs() if framework.in_pir_mode() else framework._dygraph_tracer()
    if state is None or state._amp_level == core.AmpLevel.O0:
        return tensors
    return tuple(tensor.astype(state._amp_dtype) for tensor in tensors)
