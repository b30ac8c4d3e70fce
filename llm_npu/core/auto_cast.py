"""``paddle.amp.auto_cast`` for functions that replace operators on its white list."""

from __future__ import annotations

import paddle


def cast_inputs(*tensors) -> tuple:
    """Cast the inputs of a matmul or attention to the dtype of the active auto_cast, if any."""
    core, framework = paddle.base.core, paddle.base.framework
    # While a program is captured, auto_cast keeps separate state.
    state = core._get_amp_attrs() if framework.in_pir_mode() else framework._dygraph_tracer()
    if state is None or state._amp_level == core.AmpLevel.O0:
        return tensors
    return tuple(tensor.astype(state._amp_dtype) for tensor in tensors)
