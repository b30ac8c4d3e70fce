"""A training step as a list of operations with compute, memory traffic and possible overlap.

``llm_npu.plan.step_model.program`` generates the list from a model's shape and a layout; the cost model turns
it into seconds. Tests compare it with the calls that a dry run records (``llm_npu.training.dry_run``).
"""

from __future__ import annotations

from typing import NamedTuple

OFFLOAD = "offload"


class Operation(NamedTuple):
    """One kernel or one collective of one rank, run ``times`` times.

    Attributes:
        kind: "matmul", fused "attention", "vector" (bound by the vector unit or by device memory),
            "collective", the "optimizer" update, or "offload" (a copy to or from host memory).
        flops: multiplications and additions of one run.
        bytes: device memory traffic of one run.
        cached: the part of ``bytes`` exchanged only with the previous and next kernels, which a large enough
            cache can serve.
        shapes: of the inputs; ``((m, k), (k, n))`` for a matmul.
        phase: "forward", "backward", "recompute" or "step".
        payload: bytes of a collective's whole tensor: the output of all_reduce, all_gather, reduce, broadcast
            and send, the input of reduce_scatter and all_to_all.
        group, group_size: the ranks of a collective: "tp", "pp", "dp", "sharding" (data-parallel ranks that
            share states), "heads" (Ulysses), "ring", "sep" (both, for gradients), "experts" (ranks that share
            the experts of an MoE layer), or "replicas" (ranks with the same experts).
        overlaps: what a collective may overlap with: the "matmul" before or after it, in chunks, the
            "attention" before it, or "" for nothing.
    """

    name: str
    kind: str
    flops: float = 0.0
    bytes: float = 0.0
    cached: float = 0.0
    dtype: str = "bfloat16"
    shapes: tuple[tuple[int, ...], ...] = ()
    phase: str = "forward"
    times: int = 1
    collective: str = ""
    payload: float = 0.0
    group: str = ""
    group_size: int = 1
    overlaps: str = ""


def collective(
    prefix: str, what: str, payload: float, group: str, group_size: int, phase: str, **fields
) -> Operation:
    """The collective ``what`` on ``payload`` bytes, named ``prefix.what``."""
    fields |= {"payload": payload, "group": group, "group_size": group_size}
    return Operation(f"{prefix}.{what}", "collective", phase=phase, collective=what, **fields)
