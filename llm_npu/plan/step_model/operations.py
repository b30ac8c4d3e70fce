"""A training step as a list of operations with compute, memory traffic and possible overlap.

``llm_npu.plan.step_model.program`` generates the list from a model's shape and a layout; the cost model turns
it into seconds. Tests compare it with the calls that a dry run records (``llm_npu.training.dry_run``).
"""

from __future__ import annotations

from typing import NamedTuple

# matmul: runs on the cube unit. attention: fused attention. vector: bound by the vector unit or by device
# memory. optimizer: the update. host: runs on the host's CPU, or on the card's AICPU. offload: copies between
# the card's and the host's memory.
OFFLOAD = "offload"
KINDS = ("matmul", "attention", "vector", "collective", "optimizer", "host", OFFLOAD)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "send")
# tp, pp, dp: tensor, pipeline and data parallelism. sharding: the data-parallel ranks that share states.
# heads, ring: the ranks of Ulysses and of the ring. sep: both, when they sum gradients.
# experts: the ranks that share the experts of a mixture. replicas: the ranks with the same experts.
GROUPS = ("tp", "pp", "dp", "sharding", "heads", "ring", "sep", "experts", "replicas")
PHASES = ("forward", "backward", "recompute", "step")
# What a collective may overlap with. "matmul": the matmul before or after it, in chunks. "": nothing; the
# compute stream waits. "attention": the attention before it.
OVERLAPS = ("", "matmul", "attention")


class Operation(NamedTuple):
    """One kernel or one collective of one rank, run ``times`` times.

    Attributes:
        flops: multiplications and additions of one run.
        bytes: device memory traffic of one run.
        cached: the part of ``bytes`` exchanged only with the previous and next kernels, which a large enough
            cache can serve.
        shapes: of the inputs; ``((m, k), (k, n))`` for a matmul.
        phase: one of PHASES.
        payload: bytes of a collective's whole tensor: the output of all_reduce, all_gather, reduce, broadcast
            and send, the input of reduce_scatter and all_to_all.
        group, group_size: the ranks of a collective.
        overlaps: what a collective may overlap with, one of OVERLAPS.
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
