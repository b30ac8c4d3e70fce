"""Patches for PaddleFormers' DeepSeek-V3 with tensor parallelism."""

from __future__ import annotations

import functools
import types

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    AllGatherOp,
    mark_as_sequence_parallel_parameter,
)


@functools.cache
def fix_heads() -> None:
    """PaddleFormers 1.1 and 1.2: DeepSeek-V3 fails under tensor parallelism without sequence parallelism
    ("The 'shape' in ReshapeOp is invalid").

    Its attention reshapes the local queries to the global number of heads. The patch sets ``num_heads`` to
    the local number; DeepSeek-V3 reads ``num_heads`` nowhere else.
    """
    from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3Attention

    build = DeepseekV3Attention.__init__

    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        self.num_heads = self.num_local_heads

    DeepseekV3Attention.__init__ = __init__


@functools.cache
def fix_rotated_key() -> None:
    """PaddleFormers 1.1 and 1.2: under tensor parallelism, DeepSeek-V3's gradients are incomplete, starting
    at the keys of the last layer.

    All heads share the rotated part of a key. Each process has the gradient from its local heads only, which
    is neither summed nor, with sequence parallelism, sent to the process that holds the token. The patch sums
    these gradients.
    """
    from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3Attention

    build, compute = DeepseekV3Attention.__init__, DeepseekV3Attention.forward

    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.tensor_parallel and not self.sequence_parallel:
            sizes = [self.kv_lora_rank, self.qk_rope_head_dim]
            self.kv_a_proj_with_mqa.register_forward_post_hook(functools.partial(_shared_by_heads, sizes))

    DeepseekV3Attention.__init__ = __init__
    # Only the shared key is gathered here. AllGatherOp sums in its backward pass, GatherOp does not.
    scope = {**compute.__globals__, "GatherOp": AllGatherOp}
    DeepseekV3Attention.forward = types.FunctionType(
        compute.__code__, scope, compute.__name__, compute.__defaults__, compute.__closure__
    )


def _shared_by_heads(sizes, layer, inputs, output):
    """``output``; its last columns receive the summed gradients of all processes' heads."""
    compressed, rotated = paddle.split(output, sizes, axis=-1)
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    return paddle.concat([compressed, mp_ops._c_identity(rotated, group=group)], axis=-1)


@functools.cache
def fix_routers_and_experts() -> None:
    """PaddleFormers 1.1 and 1.2: under sequence parallelism, DeepSeek-V3 trains routers and experts with each
    process's local tokens only, so the processes' weights diverge.

    These weights are replicated. The patch marks them as parameters whose gradients the trainer sums.
    """
    from paddleformers.transformers.deepseek_v3.modeling import DeepseekV3MoE

    build = DeepseekV3MoE.__init__

    @functools.wraps(build)
    def __init__(self, config):
        build(self, config)
        if config.tensor_model_parallel_size > 1 and config.sequence_parallel:
            for parameter in (*self.gate.parameters(), *self.experts.parameters()):
                mark_as_sequence_parallel_parameter(parameter)

    DeepseekV3MoE.__init__ = __init__
