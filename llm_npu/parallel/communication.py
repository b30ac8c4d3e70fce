"""The communication of a step, read from a static program or recorded by the virtual NPU in dygraph."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import virtual_npu

# Communication operators of a program by name. (Some passes still insert the older c_... names.)
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
    """A collective ``kind`` among ``processes``, on a tensor of ``shape``.

    ``role`` is the part of the step, or "" if unknown.
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
        """Bytes that a process sends over its link with the ring algorithm on n processes."""
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

    collectives = []
    for op in program._engine._pir_dense_main_progs[mode].global_block().ops:
        kind = KINDS.get(op.name())
        if kind is None:
            continue
        attributes = op.attrs()
        group = get_process_group(attributes["ring_id"])
        processes = attributes.get("nranks") or (group.nranks if group is not None else 2)
        source = op.operand_source(0)
        dtype = str(source.dtype).rpartition(".")[2].lower()
        role = ROLES.get(attributes.get("op_role", -1), "")
        if processes > 1:
            collectives.append(Collective(kind, processes, dtype, tuple(source.shape), role))
    return collectives


def collectives_sent() -> list[Collective]:
    """The collectives of resharding in dygraph and of static programs since the last reset."""
    return [
        Collective(transfer.kind, transfer.processes, transfer.dtype, transfer.shape)
        for transfer in virtual_npu.transfers()
        for _ in range(transfer.calls)
    ]


def table(collectives: list[Collective]) -> list[str]:
    """A line per group of identical collectives, ordered by bytes, and a total."""
    counted = Counter(collectives)
    lines = []
    for item, times in sorted(counted.items(), key=lambda pair: -pair[0].bytes_sent * pair[1]):
        size = "x".join(map(str, item.shape)) or "scalar"
        lines.append(
            f"{item.role:<9} {item.kind:<14} of {item.processes}  {times:>4} x {size} {item.dtype}, "
            f"{item.bytes_sent * times:,} bytes sent"
        )
    total = sum(item.bytes_sent for item in collectives)
    return [*lines, f"total: {len(collectives)} collectives, {total:,} bytes sent by each process and step"]
