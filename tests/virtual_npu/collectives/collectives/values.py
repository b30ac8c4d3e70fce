"""Every collective, compared with numpy; ``values.py FOLDER [CHECK...]`` writes FOLDER/<rank>.json.

Of ``CHECKS`` those that are named are made, or all.
"""

from __future__ import annotations

import hashlib
import sys
import traceback

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from collectives.averages import averages
from collectives.golden import DTYPES, IN_LISTS, OPERATIONS, array, assert_equal, reduced, tensor, values

from paddle_fused.paddle_release import at_least

# Elements of float32 that ranks pass on at a time; where each gets another part, all parts together.
CHUNK = (4 << 20) // 4
SIZES = (1, 7, 1003, CHUNK + 13)
LEAST = 0 if at_least(3, 1) else 1  # rows that all_to_all sends: 3.0 takes no slice of no rows


class Group:
    """A group of ranks that includes this process."""

    def __init__(self, members: list[int]):
        self.members = members
        self.group = dist.new_group(members) if len(members) < dist.get_world_size() else None
        self.size = len(members)

    @property
    def rank(self) -> int:
        return self.members.index(dist.get_rank())

    @property
    def beyond_a_part(self) -> int:
        return 2 * CHUNK // self.size + 13

    def all_values(self, size: int, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
        return [values(member, size, dtype, seed) for member in self.members]


def all_reduce(group: Group, dtype: str) -> None:
    for operation in OPERATIONS[dtype]:
        for size in (1, 1003, 30011):
            terms = group.all_values(size, dtype)
            if dtype in ("float32", "float64") and operation in ("MAX", "MIN"):
                terms[-1][0] = np.nan
            mine = tensor(terms[group.rank], dtype)
            dist.stream.all_reduce(mine, op=getattr(dist.ReduceOp, operation), group=group.group)
            assert_equal(mine, reduced(terms, operation, dtype))


def sizes(group: Group) -> None:
    for size in (*SIZES, *((3 * CHUNK + 1,) if group.size <= 4 else ())):  # more ranks need more memory
        terms = group.all_values(size)
        total = tensor(terms[group.rank], "float32")
        dist.all_reduce(total, group=group.group)
        assert_equal(total, reduced(terms, "SUM", "float32"))


def all_gather(group: Group) -> None:
    for dtype in DTYPES:
        check_all_gather(group, 1003, dtype)
    for size in SIZES:
        check_all_gather(group, size, "float32")


def check_all_gather(group: Group, size: int, dtype: str) -> None:
    parts = group.all_values(size, dtype)
    if dtype in IN_LISTS:
        gathered = []
        dist.all_gather(gathered, tensor(parts[group.rank], dtype), group=group.group)
        for tensor_of_rank, expected in zip(gathered, parts, strict=True):
            assert_equal(tensor_of_rank, expected)
    whole = paddle.empty([group.size * size], dtype)
    dist.stream.all_gather(whole, tensor(parts[group.rank], dtype), group=group.group)
    assert_equal(whole, np.concatenate(parts))


def reduce_scatter(group: Group) -> None:
    cases = [(dtype, operation, 11) for dtype in DTYPES for operation in OPERATIONS[dtype]]
    for dtype, operation, size in [*cases, ("float32", "SUM", 1), ("float32", "SUM", group.beyond_a_part)]:
        terms = group.all_values(group.size * size, dtype)
        expected = reduced(terms, operation, dtype).reshape(group.size, size)[group.rank]
        mine = tensor(terms[group.rank], dtype)
        reduced_tensor = paddle.empty([size], dtype)
        dist.stream.reduce_scatter(
            reduced_tensor, mine, op=getattr(dist.ReduceOp, operation), group=group.group
        )
        assert_equal(reduced_tensor, expected)
        if operation == "SUM" and dtype in IN_LISTS:
            reduced_tensor = paddle.empty([size], dtype)
            dist.reduce_scatter(reduced_tensor, list(paddle.split(mine, group.size)), group=group.group)
            assert_equal(reduced_tensor, expected)


def broadcast_and_reduce(group: Group) -> None:
    cases = [(dtype, 1003) for dtype in DTYPES] + [("float32", size) for size in SIZES]
    for number, (dtype, size) in enumerate(cases):
        root = number % group.size
        parts = group.all_values(size, dtype)
        sent = tensor(parts[group.rank], dtype)
        dist.broadcast(sent, group.members[root], group=group.group)
        assert_equal(sent, parts[root])
        for operation in OPERATIONS[dtype]:
            summed = tensor(parts[group.rank], dtype)
            kind = getattr(dist.ReduceOp, operation)
            dist.stream.reduce(summed, group.members[root], op=kind, group=group.group)
            if group.rank == root:
                assert_equal(summed, reduced(parts, operation, dtype))


def all_to_all(group: Group) -> None:
    for dtype, size in [(dtype, 5) for dtype in DTYPES] + [("float32", 1), ("float32", group.beyond_a_part)]:
        parts = [part.reshape(group.size, size) for part in group.all_values(group.size * size, dtype)]
        expected = [part[group.rank] for part in parts]
        mine = tensor(parts[group.rank], dtype)
        if dtype in IN_LISTS or at_least(3, 1):  # 3.0 splits no others
            received = []
            dist.alltoall(received, [mine[i] for i in range(group.size)], group=group.group)
            for part, values_of_one in zip(received, expected, strict=True):
                assert_equal(part, values_of_one)
        whole = paddle.empty([group.size, size], dtype)
        dist.stream.alltoall_single(whole, mine, group=group.group)
        assert_equal(whole, np.stack(expected))


def all_to_all_of_any_sizes(group: Group) -> None:
    def rows(sender: int, receiver: int) -> int:
        return (3 * sender + 2 * receiver) % 5 + LEAST  # some of them none

    def sent_by(sender: int) -> list[np.ndarray]:
        numbers = [rows(sender, receiver) for receiver in range(group.size)]
        whole = values(group.members[sender], sum(numbers) * 70001, "float32").reshape(-1, 70001)
        return np.split(whole, np.cumsum(numbers)[:-1])

    mine = sent_by(group.rank)
    expected = [sent_by(sender)[group.rank] for sender in range(group.size)]
    received = paddle.empty([sum(len(part) for part in expected), 70001])
    dist.alltoall_single(
        received,
        tensor(np.concatenate(mine), "float32"),
        in_split_sizes=[len(part) for part in mine],
        out_split_sizes=[len(part) for part in expected],
        group=group.group,
    )
    assert_equal(received, np.concatenate(expected))


def scatter_and_gather(group: Group) -> None:
    for root in range(group.size):
        parts = group.all_values(1003, seed=root)
        source = [tensor(part, "float32") for part in parts] if group.rank == root else None
        received = paddle.empty([1003])
        dist.scatter(received, source, src=group.members[root], group=group.group)
        assert_equal(received, parts[group.rank])
        gathered = []
        dist.gather(
            tensor(parts[group.rank], "float32"), gathered, dst=group.members[root], group=group.group
        )
        if group.rank == root:
            for part, expected in zip(gathered, parts, strict=True):
                assert_equal(part, expected)
    objects = []
    dist.all_gather_object(objects, {"rank": group.rank}, group=group.group)
    assert objects == [{"rank": rank} for rank in range(group.size)]


def neighbours(group: Group) -> tuple[int, int]:
    """The ranks after and before this one."""
    return group.members[(group.rank + 1) % group.size], group.members[group.rank - 1]


def send_and_receive(group: Group) -> None:
    after, before = neighbours(group)
    for dtype, size in [(dtype, 1003) for dtype in DTYPES] + [("float32", size) for size in (0, *SIZES)]:
        received = paddle.empty([size], dtype)
        # All send first: nobody has called for what is sent.
        dist.send(tensor(values(dist.get_rank(), size, dtype), dtype), after, group=group.group)
        dist.recv(received, before, group=group.group)
        assert_equal(received, values(before, size, dtype))


def many_sends(group: Group) -> None:
    """More sends than may be pending."""
    after, before = neighbours(group)
    sent = [tensor(values(dist.get_rank(), 100 + i, "float32", i), "float32") for i in range(150)]
    received = [paddle.empty([100 + i]) for i in range(150)]
    tasks = [dist.isend(x, after, group=group.group) for x in sent]
    tasks += [dist.irecv(x, before, group=group.group) for x in received]
    for task in tasks:
        task.wait()
    for i, x in enumerate(received):
        assert_equal(x, values(before, 100 + i, "float32", i))


def batches(group: Group) -> None:
    """Receives before sends, and sends before receives, in one step."""
    after, before = neighbours(group)
    for order in (1, -1):
        for size in (3, 2 * CHUNK):
            sent, received = tensor(values(dist.get_rank(), size, "float32"), "float32"), paddle.empty([size])
            step = [
                dist.P2POp(dist.irecv, received, before, group.group),
                dist.P2POp(dist.isend, sent, after, group.group),
            ]
            for task in dist.batch_isend_irecv(step[::order]):
                task.wait()
            assert_equal(received, values(before, size, "float32"))


def batches_in_any_order(group: Group) -> None:
    """Two sends and two receives of every rank in one step, in a different order on each rank."""
    for size in (3, 2 * CHUNK):
        for round_ in range(4):
            after, before = neighbours(group)
            sent = [tensor(values(dist.get_rank(), size, "float32", way), "float32") for way in (0, 1)]
            received = [paddle.empty([size]) for _ in range(2)]
            step = [
                dist.P2POp(dist.irecv, received[0], before, group.group),
                dist.P2POp(dist.isend, sent[0], after, group.group),
                dist.P2POp(dist.irecv, received[1], after, group.group),
                dist.P2POp(dist.isend, sent[1], before, group.group),
            ]
            if after == before:  # what goes one way between two ranks keeps its order
                step = step[:2]
            first = (group.rank + round_) % len(step)
            for task in dist.batch_isend_irecv(step[first:] + step[:first]):
                task.wait()
            assert_equal(received[0], values(before, size, "float32", 0))
            if after != before:
                assert_equal(received[1], values(after, size, "float32", 1))


def in_flight(group: Group) -> None:
    """Many concurrent collectives, some on the compute stream; their outputs stay referenced."""
    size = group.size * 50021
    tasks, results, expected = [], [], []
    for i in range(24):
        terms = group.all_values(size, seed=i)
        mine = tensor(terms[group.rank], "float32")
        if i % 4 == 0:
            tasks.append(dist.all_reduce(mine, sync_op=False, group=group.group))
            results.append(mine)
            expected.append(reduced(terms, "SUM", "float32"))
        elif i % 4 == 1:
            results.append(paddle.empty([group.size * size]))
            tasks.append(dist.stream.all_gather(results[-1], mine, sync_op=False, group=group.group))
            expected.append(np.concatenate(terms))
        elif i % 4 == 2:
            results.append(paddle.empty([size // group.size]))
            tasks.append(dist.stream.reduce_scatter(results[-1], mine, sync_op=False, group=group.group))
            expected.append(reduced(terms, "SUM", "float32").reshape(group.size, -1)[group.rank])
        else:
            dist.stream.all_reduce(mine, use_calc_stream=True, group=group.group)
            results.append(mine)
            expected.append(reduced(terms, "SUM", "float32"))
    for task in tasks:
        task.wait()
        assert task.is_completed()
    for result, right in zip(results, expected, strict=True):
        assert_equal(result, right)


def empty_tensors(group: Group) -> None:
    """Paddle itself refuses them, except for two collectives; the group stays unchanged."""
    nothing = paddle.zeros([0, 4])
    for refused in (
        lambda: dist.all_reduce(nothing, group=group.group),
        lambda: dist.broadcast(nothing, group.members[0], group=group.group),
        lambda: dist.all_gather([], nothing, group=group.group),
    ):
        try:
            refused()
        except ValueError as error:
            assert "greater than 0" in str(error)
        else:
            raise AssertionError("Paddle takes empty tensors now: compare their results")
    if LEAST == 0:
        received = []
        dist.alltoall(received, [nothing] * group.size, group=group.group)
        assert [x.shape for x in received] == [[0, 4]] * group.size
    sizes(group)


def views(group: Group) -> None:
    """A tensor that is not contiguous: Paddle refuses it, and its copy works."""
    parts = [part.reshape(3, 5) for part in group.all_values(15)]
    view = tensor(parts[group.rank], "float32").t()
    try:
        dist.all_reduce(view, group=group.group)
    except ValueError as error:
        assert "must be contiguous" in str(error)
    else:
        raise AssertionError("Paddle takes views now: compare their results")
    copy = view.contiguous()
    dist.all_reduce(copy, group=group.group)
    assert_equal(copy, reduced([part.T for part in parts], "SUM", "float32"))
    row = tensor(np.stack(parts), "float32")[group.rank]  # contiguous, in the middle of another tensor
    dist.all_reduce(row, group=group.group)
    assert_equal(row, reduced(parts, "SUM", "float32"))


def names(group: Group) -> None:
    own = dist.get_rank()
    holder = group.group or dist.collective._get_default_group()
    all_names = []
    dist.all_gather_object(all_names, holder.process_group.get_comm_name(own), group=group.group)
    assert len(set(all_names)) == 1 and all_names[0], all_names


def timing_changes_nothing(group: Group) -> None:
    """The same bits on every rank, whichever arrives first: each time another rank computes before."""
    for dtype in ("float32", "bfloat16"):
        digests = set()
        for late in range(group.size):
            mine = tensor(values(dist.get_rank(), 300007, dtype), dtype)
            if group.rank == late:
                float(paddle.matmul(paddle.ones([700, 700]), paddle.ones([700, 700])).sum())
            dist.all_reduce(mine, group=group.group)
            digests.add(hashlib.sha256(array(mine).tobytes()).hexdigest())
        everywhere = []
        dist.all_gather_object(everywhere, sorted(digests), group=group.group)
        assert len(digests) == 1 and everywhere == [sorted(digests)] * group.size


CHECKS = {
    **{f"all_reduce of {dtype}": (lambda group, dtype=dtype: all_reduce(group, dtype)) for dtype in DTYPES},
    "sizes": sizes,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast and reduce": broadcast_and_reduce,
    "all_to_all": all_to_all,
    "all_to_all of any sizes": all_to_all_of_any_sizes,
    "scatter and gather": scatter_and_gather,
    "send and receive": send_and_receive,
    "many sends": many_sends,
    "batches": batches,
    "batches in any order": batches_in_any_order,
    "in flight": in_flight,
    "empty tensors": empty_tensors,
    "views": views,
    "averages": averages,
    "names": names,
    "timing changes nothing": timing_changes_nothing,
}


IN_SUBGROUPS = ("all_reduce of float32", "reduce_scatter", "scatter and gather", "batches", "names")


def subgroups(world: int) -> dict[str, list[list[int]]]:
    """Ways to split the ranks, for more than two of them."""
    every = list(range(world))
    return {"halves": [every[: world // 2], every[world // 2 :]], "interleaved": [every[::2], every[1::2]]}


def main(checks: list[str]) -> None:
    dist.init_parallel_env()
    world = dist.get_world_size()
    groups = {"all": Group(list(range(world)))}
    if world > 2:
        for name, split in subgroups(world).items():
            all_groups = [Group(members) for members in split]  # every rank takes part in making each
            groups[name] = next(group for group in all_groups if dist.get_rank() in group.members)
    report = {}
    for name, group in groups.items():
        for check in checks if name == "all" else [check for check in IN_SUBGROUPS if check in checks]:
            try:
                CHECKS[check](group)
                report[f"{check}, {name}"] = ""
            except Exception:
                report[f"{check}, {name}"] = traceback.format_exc()
    ranks.write(report)


if __name__ == "__main__":
    main(sys.argv[2:] or list(CHECKS))
