"""What ``paddle.amp.auto_cast`` does to the operators of its white list, for functions in their place."""

from __future__ import annotations

import paddle


def of_a_product(*tensors) -> tuple:
    """The tensors as auto_cast casts those of a product, or of attention: all to its dtype."""
    tracer = paddle.base.framework._dygraph_tracer()
    if tracer is None or tracer._amp_level == paddle.base.core.AmpLevel.O0:
        return tensors
    return tuple(tensor.astype(tracer._amp_dtype) for tensor in tensors)
