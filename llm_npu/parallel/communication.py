"""The communication of a step: read from a static program, or recorded by the virtual NPU in dygraph."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import virtual_npu

# Communication operators of a program, and their kinds. (Some passes still insert the older c_... names.)
KINDS = {
    "pd_op.all_reduce": "all_reduce",
    "pd_op.all_reduce_": "all_reduce",
    "pd_op.c_allreduce_sum": "all_reduce",
    "pd_op.c_allreduce_sum_": "all_reduce",
    "pd_op.mp_allreduce_sum": "all_reduce",
    "pd_op.mp_allreduce_sum_": "all_reduce",
    "pd_op.all_gather": "all_gather",
    "pd_op.c_allgather": "all_gather",
    "pd_op.c_concat": "all_gather",
    "pd_op.reduce_scatter": "reduce_scatter",
    "pd_op.c_reducescatter": "reduce_scatter",
    "pd_op.all_to_all": "all_to_all",
    "pd_op.alltoall": "all_to_all",
    "pd_op.broadcast": "broadcast",
    "pd_op.broadcast_": "broadcast",
    "pd_op.reduce": "reduce",
    "pd_op.send_v2": "send",
    "pd_op.p_send": "send",
}
ROLES = {0: "forward", 1: "backward", 2: "optimizer", 256: "forward", 257: "backward"}


@dataclass(frozen=True)
class Collective:
    """One collective: ``kind`` among ``processes``, on a tensor of ``shape``.

    ``role``: the part of the step, or "" if unknown.
    """

    kind: str
    processes: int
    dtype: str
    shape: tuple[int, ...]
    role: str = ""

    @property
    def bytes_given(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]

    @property
    def bytes_sent(self) -> int:
        """Bytes that a process sends over its link, with the usual algorithm on a ring of n processes."""
        n, size = self.processes, self.bytes_given
        if self.kind == "all_reduce":
            return 2 * (n - 1) * size // n
        if self.kind == "all_gather":
            return (n - 1) * size
        if self.kind in ("reduce_scatter", "all_to_all"):
            return (n - 1) * size // n
        return size


BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def collectives_of(program, mode: str = "train") -> list[Collective]:
    """The collectives of a ``dist.DistModel``'s program, in order; single-process ones are skipped."""
    from paddle.distributed.auto_parallel.static.process_group import get_process_group

    found = []
    for op in program._engine._pir_dense_main_progs[mode].global_block().ops:
        kind = KINDS.get(op.name())
        if kind is None:
            continue
        attributes = op.attrs()
        group = get_process_group(attributes["ring_id"])
        processes = attributes.get("nranks") or (group.nranks if group is not None else 2)
        given = op.operand_source(0)
        dtype = str(given.dtype).rpartition(".")[2].lower()
        role = ROLES.get(attributes.get("op_role", -1), "")
        if processes > 1:
            found.append(Collective(kind, processes, dtype, tuple(given.shape), role))
    return found


def collectives_sent() -> list[Collective]:
    """Bytes sent by resharding in dygraph (and by static programs) since the last reset, by kind and size."""
    return [
        Collective(each.kind, each.processes, each.dtype, each.shape)
        for each in virtual_npu.transfers()
        for _ in range(each.calls)
    ]


def table(collectives: list[Collective]) -> list[str]:
    """One line per group of identical collectives, the most bytes first, and a total."""
    counted = Counter(collectives)
    order = sorted(counted, key=lambda each: -each.bytes_sent * counted[each])
    lines = []
    for each in order:
        size = "x".join(map(str, each.shape)) or "scalar"
        lines.append(
            f"{each.role:<9} {each.kind:<14} of {each.processes}  {counted[each]:>4} x {size} {each.dtype}, "
            f"{each.bytes_sent * counted[each]:,} bytes sent"
        )
    total = sum(each.bytes_sent for each in collectives)
    return [*lines, f"total: {len(collectives)} collectives, {total:,} bytes sent by each process and step"]
