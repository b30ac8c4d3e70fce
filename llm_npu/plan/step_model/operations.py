"""A training step as a list of operations: compute, memory traffic, and what may overlap.

The list comes from a model's shape and a layout (``llm_npu.plan.step_model.program``); the cost model turns
it into seconds. Tests compare it with the calls that a dry run records (``llm_npu.training.dry_run``).
"""

from __future__ import annotations

from typing import NamedTuple

# matmul: products in the cube unit. attention: fused attention. vector: bound by the vector unit or by device
# memory. optimizer: the update. host: runs on the host's processors, or on the card's AICPU.
KINDS = ("matmul", "attention", "vector", "collective", "optimizer", "host")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "send")
# tp, pp, dp: tensor, pipeline and data parallelism. sharding: the data-parallel ranks that share states.
GROUPS = ("tp", "pp", "dp", "sharding")
PHASES = ("forward", "backward", "recompute", "step")
# What a collective may overlap with: the product before or after it, in chunks ("matmul"); the attention
# before it ("attention") or any work of the backward pass ("backward"), in the study of published runs only;
# or nothing, the compute stream waits ("").
OVERLAPS = ("", "matmul", "attention", "backward")


class Operation(NamedTuple):
    """One kernel or one collective of one rank, run ``times`` times.

    ``flops``: multiplications and additions of one run. ``bytes``: device memory traffic, of which ``cached``
    is exchanged with the previous and next kernels only, and can be served by a large enough cache.
    ``shapes``: of its inputs; for a matmul ``((m, k), (k, n))``. ``phase``: of the step, see PHASES.

    Of a collective, ``payload`` is the bytes of the whole tensor: the output of all_reduce, all_gather,
    reduce, broadcast and send, the input of reduce_scatter and all_to_all. ``group`` and ``group_size`` give
    its ranks, ``overlaps`` what it may overlap with.
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
