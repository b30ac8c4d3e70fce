"""Workarounds whose defects a later release has fixed: they serve those who install an older one."""

from __future__ import annotations

from typing import NamedTuple


class Fixed(NamedTuple):
    workaround: str
    defect: str
    within: str
    since: str


FIXED = (
    Fixed(
        "llm_npu.patches.layers.fix_sequence_parallel_split_axis",
        "Weights of sequence parallel layers lack the attribute `split_axis`.",
        "paddlepaddle 3.0",
        "3.1",
    ),
    Fixed(
        "llm_npu.patches.operators.fix_where_default_dtype",
        "`paddle.where(mask, 0.0, -1.0)` is float64.",
        "paddlepaddle 3.0 and 3.1",
        "3.2",
    ),
    Fixed(
        "paddle_fused.paddle_release.float16_rounding_on_cpu",
        "A cast from float32 to float16 on the CPU place rounds toward zero, not to the nearest number.",
        "paddlepaddle 3.0 and 3.1",
        "3.2",
    ),
    Fixed(
        "llm_npu.patches.auto_parallel.fix_sharded_master_weights",
        'Sharding stage 3 splits master weights that are split already ("can\'t be shard twice").',
        "paddlepaddle 3.0 to 3.2",
        "3.3",
    ),
)
