"""PaddleFormers' mixtures of experts on npu."""

from __future__ import annotations

import functools


@functools.cache
def fix_qwen3_moe_gate_dtype() -> None:
    """PaddleFormers 1.1 and 1.2: a Qwen3-MoE in bfloat16 or float16 fails without auto_cast ("The type of
    data we are trying to retrieve (float32) does not match the type of data (bfloat16)").

    The router's weight is always float32, and ``F.linear`` does not multiply bfloat16 by it. The patch casts
    the router's input; under auto_cast, which casts both, nothing changes.
    """
    from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeSparseMoeBlock

    build = Qwen3MoeSparseMoeBlock.__init__

    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        self.gate.register_forward_pre_hook(in_dtype_of_weight)

    Qwen3MoeSparseMoeBlock.__init__ = __init__


def in_dtype_of_weight(layer, inputs):
    """The inputs of a linear layer in the dtype of its weight."""
    return tuple(each.astype(layer.weight.dtype) for each in inputs)
