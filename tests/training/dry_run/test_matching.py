"""The matcher finds mismatches among 1,024 ranks. One rank of each stage has a journal."""

import json
from pathlib import Path

import numpy as np
import pytest

from llm_npu.core.errors import UserError
from llm_npu.training.dry_run import calls, matching, roles
from llm_npu.training.dry_run.world import World

MESH = {"data": 1, "pipe": 8, "sharding": 16, "sep": 1, "model": 8}
RANKS = np.arange(1024).reshape(list(MESH.values()))
STAGES = [int(RANKS[0, stage, 0, 0, 0]) for stage in range(MESH["pipe"])]
BLOCK = 128  # ranks of a stage


def groups_of(axis: str) -> list[list[int]]:
    """The groups along an axis, in fleet's order."""
    moved = np.moveaxis(RANKS, list(MESH).index(axis), -1)
    return moved.reshape(-1, MESH[axis]).tolist()


GROUPS = [RANKS.reshape(-1).tolist()]
for axis in ("pipe", "model", "sharding"):
    GROUPS += groups_of(axis)


def number_of(axis: str, rank: int) -> int:
    """The number of the group of ``rank`` along an axis."""
    return next(
        number
        for number, ranks in enumerate(GROUPS)
        if rank in ranks and len(ranks) == MESH[axis] and ranks in groups_of(axis)
    )


class Journal:
    """The journal of a rank, as the virtual NPU writes it."""

    def __init__(self, rank: int):
        self.rank, self.lines = rank, []
        for number, ranks in enumerate(GROUPS):
            self.mark(f"members {json.dumps({'group': number, 'ranks': ranks, 'line': 'mesh.py:1'})}")
        self.mark(f"mesh {json.dumps(MESH)}")

    def mark(self, text: str) -> None:
        self.lines.append(json.dumps({"event": "mark", "text": text}, separators=(",", ":")))

    def call(self, group: int, kind: str, elements: int, line: int, peer: int = 0, dtype="float32", **facts):
        """A call of Python with one collective."""
        stream = facts.pop("stream", 1)
        facts = {"group": group, "line": f"train.py:{line}", "blocking": True, **facts}
        self.mark(f"call {json.dumps(facts)}")
        event = {"event": "collective", "kind": kind, "group": "dry-1", "ranks": len(GROUPS[group])}
        event |= {"peer": peer, "dtype": dtype, "elements": elements, "bytes": elements * 4, "stream": stream}
        self.lines.append(json.dumps(event, separators=(",", ":")))
        self.mark("returned")


def stage_of(rank: int) -> int:
    return rank // BLOCK


def train(journal: Journal, mistake: str = "") -> None:
    """A step of a stage: activations come and go, the tensor group sums, gradients return."""
    rank, stage = journal.rank, stage_of(journal.rank)
    pipeline, tensor, sharding = (number_of(axis, rank) for axis in ("pipe", "model", "sharding"))
    journal.mark("step begins")
    size = 16 if mistake == "size" else 32
    dtype = "bfloat16" if mistake == "dtype" else "float32"
    if stage > 0:
        journal.call(pipeline, "recv", size, 10, peer=stage - 1, dtype=dtype)
    journal.call(tensor, "all_reduce", 32, 11, reduce="SUM")
    if stage < 7:
        journal.call(pipeline, "send", 32, 12, peer=stage + 1)
        if mistake == "deadlock":
            journal.call(pipeline, "send", 8, 19, peer=stage + 1)
        journal.call(pipeline, "recv", 32, 13, peer=stage + 1)
        if stage < 6 and mistake != "deadlock":
            journal.call(pipeline, "send", 8, 14, peer=stage + 1)
    if stage > 0:
        journal.call(pipeline, "send", 32, 15, peer=stage - 1)
        if stage < 7:
            journal.call(pipeline, "recv", 8, 16, peer=stage - 1)
    reduction = "MAX" if mistake == "reduction" else "SUM"
    ends = [
        (sharding if mistake == "group" else pipeline, "all_reduce", 1, 20, {"reduce": reduction}),
        (pipeline, "broadcast", 4, 21, {"peer": 1 if mistake == "root" else 0}),
    ]
    for group, kind, elements, line, more in reversed(ends) if mistake == "order" else ends:
        journal.call(group, kind, elements, line, **more)
    journal.call(sharding, "all_gather", 64, 22)
    if mistake == "more":
        journal.call(0, "all_reduce", 1, 23, reduce="SUM")
    journal.mark("step ends")
    journal.mark("peak 1048576")


def world(folder: Path, stage: int = -1, mistake: str = "", make=train) -> World:
    """The world of the journals of all stages; ``stage`` makes the mistake."""
    files = []
    for number, rank in enumerate(STAGES):
        journal = Journal(rank)
        make(journal, mistake if number == stage else "")
        files.append(folder / f"journal.{rank}")
        files[-1].write_text("\n".join(journal.lines) + "\n")
    return World([calls.read(file) for file in files])


def test_a_thousand_ranks_match(tmp_path):
    built = world(tmp_path)
    matched = matching.match(built)
    assert (matched.ranks, matched.ran, matched.unchecked, matched.unnamed) == (1024, 8, 0, 0)
    assert matched.groups == 128 + 128 + 64
    assert matched.calls == BLOCK * sum(len(ran.calls) for ran in built.ran.values())


@pytest.mark.parametrize(
    ("mistake", "stage", "lines", "ranks"),
    [
        ("group", 3, ("train.py:20", "train.py:21"), (0, 384)),
        ("order", 3, ("train.py:20", "train.py:21"), (0, 384)),
        ("reduction", 7, ("train.py:20", "train.py:20"), (0, 896)),
        ("root", 1, ("train.py:21", "train.py:21"), (0, 128)),
        ("size", 3, ("train.py:12", "train.py:10"), (256, 384)),
        ("dtype", 3, ("train.py:12", "train.py:10"), (256, 384)),
        ("more", 2, ("train.py:23",), (0, 256)),
        ("deadlock", 2, ("train.py:19", "train.py:15"), (256, 384)),
    ],
)
def test_a_mistake_of_one_stage_is_named(tmp_path, mistake, stage, lines, ranks):
    with pytest.raises(matching.Mismatch) as error:
        matching.match(world(tmp_path, stage, mistake))
    text = str(error.value)
    assert all(line in text for line in lines) and all(f"rank {rank}" in text for rank in ranks), text


def test_ranks_that_create_groups_in_another_order(tmp_path):
    def make(journal, mistake):
        first, second = ([0, 1], [2, 3]) if not mistake else ([2, 3], [0, 1])
        for number, (ranks, line) in enumerate([(first, "a.py:7"), (second, "a.py:8")], len(GROUPS)):
            journal.mark(f"members {json.dumps({'group': number, 'ranks': ranks, 'line': line})}")
        train(journal)

    with pytest.raises(
        matching.Mismatch, match=r"\[0, 1\] on rank 0 at a.py:7 and \[2, 3\] on rank 640 at a.py:7"
    ):
        matching.match(world(tmp_path, 5, "order", make))


@pytest.mark.parametrize("stage_mistake", ["", "mistake"])
def test_the_parts_of_an_all_to_all(tmp_path, stage_mistake):
    def make(journal, mistake):
        sent = [1, 2, 3, 4, 5, 6, 7, 8]
        received = [9 if mistake else sent[0]] * 8
        facts = {"sent": sent, "received": received}
        journal.call(number_of("model", journal.rank), "all_to_all", 36, 30, **facts)

    built = world(tmp_path, 4, stage_mistake, make)
    if not stage_mistake:
        assert matching.match(built).calls == 1024
        return
    with pytest.raises(matching.Mismatch, match=r"sends 1 to rank 512 .* expects 9 .*train.py:30"):
        matching.match(built)


@pytest.mark.parametrize(
    ("stage_mistake", "error"), [("", None), ("first", "deadlock"), ("size", "ends of a transfer")]
)
def test_a_ring_inside_a_stage(tmp_path, stage_mistake, error):
    """Each rank sends to the next of its tensor group, and receives from the previous one."""

    def make(journal, mistake):
        group = number_of("model", journal.rank)
        streams = (1, 1) if mistake == "first" else (1, 2)
        journal.call(group, "send", 4, 40, peer=1, stream=streams[0], blocking=False)
        journal.call(
            group, "recv", 8 if mistake == "size" else 4, 41, peer=7, stream=streams[1], blocking=False
        )

    built = world(tmp_path, 2, stage_mistake, make)
    if error is None:
        assert matching.match(built).calls == 2048
        return
    with pytest.raises(matching.Mismatch, match=f"{error}.*train.py:40"):
        matching.match(built)


def test_memory_and_traffic_of_each_role(tmp_path):
    rows = roles.roles(world(tmp_path))
    assert [(row.name, row.representative, row.ranks, row.peak_bytes) for row in rows] == [
        (f"stage {stage}", rank, BLOCK, 1 << 20) for stage, rank in enumerate(STAGES)
    ]
    assert rows[0].bytes_per_step == {
        "tensor": 32 * 4,
        "pipeline": (32 + 8 + 1 + 4) * 4,
        "sharding": 16 * 64 * 4,
    }
    assert "stage 7 (rank 896)" in roles.table(rows).text()


def test_a_stage_without_a_journal(tmp_path):
    built = world(tmp_path)
    with pytest.raises(UserError, match="none of stage 7"):
        matching.match(World([rank for number, rank in built.ran.items() if number != 896]))
