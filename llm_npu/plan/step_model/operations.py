"""A training step as a list of operations: what is computed, what is moved, and what may overlap.

The list comes either from the program itself, run without memory or arithmetic (``llm_npu.plan.dry_run``), or
from a model's shape and a layout (``llm_npu.plan.step_model.program``). The cost model turns it into seconds.
"""

from __future__ import annotations

from typing import NamedTuple

# matmul: products in the cube unit. attention: a fused attention. vector: bound by the vector unit or by
# device memory. optimizer: the update. host: runs on the host's processors, or on the card's AICPU.
KINDS = ("matmul", "attention", "vector", "collective", "optimizer", "host")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "all_to_all", "send")
# tp, pp, dp: tensor, pipeline and data parallelism. sharding: the data-parallel ranks when they share states.
GROUPS = ("tp", "pp", "dp", "sharding")
PHASES = ("forward", "backward", "recompute", "step")
# Beside what a collective may run: the product it feeds or follows, by pieces ("matmul"); any work of the
# backward pass ("backward"); or nothing, the compute stream waits for it ("").
OVERLAPS = ("", "matmul", "backward")


class Operation(NamedTuple):
    """One kernel or one collective of one rank, ``times`` over.

    ``flops``: multiplications and additions of one run. ``bytes``: read and written in device memory,
    of which ``cached`` only for the kernels before and after: a cache that is large enough has them.
    ``shapes``: of its inputs; for a matmul ``((m, k), (k, n))``. ``phase``: of the step, see PHASES.

    Of a collective, ``payload`` is the bytes of the whole tensor: what ranks end with (all_reduce,
    all_gather, reduce, broadcast, send) or start with (reduce_scatter, all_to_all). ``group`` and
    ``group_size`` say among whom, ``overlaps`` beside what it may run.
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
