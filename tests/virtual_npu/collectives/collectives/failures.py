"""Ranks with mismatched calls, and lost ranks: the error on each rank.

``failures.py FOLDER CASE`` writes FOLDER/<rank>.json: the error of each rank, after how many seconds it came,
and the error of the next call.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import paddle
import paddle.distributed as dist
import ranks

import virtual_npu


def vector(size: int = 10, dtype: str = "float32") -> paddle.Tensor:
    return paddle.ones([size]).astype(dtype)


# Calls that do not fit: what rank 0 does and what the others do, each on a group of its own.
MISMATCHES = {
    "kind": (
        lambda group: dist.all_reduce(vector(), group=group),  # rank 0
        lambda group: dist.broadcast(vector(), 0, group=group),  # others
    ),
    "dtype": (
        lambda group: dist.all_reduce(vector(), group=group),  # rank 0
        lambda group: dist.all_reduce(vector(dtype="int32"), group=group),  # others
    ),
    "count": (
        lambda group: dist.all_reduce(vector(11), group=group),  # rank 0
        lambda group: dist.all_reduce(vector(12), group=group),  # others
    ),
    "reduction": (
        lambda group: dist.all_reduce(vector(), dist.ReduceOp.MAX, group=group),  # rank 0
        lambda group: dist.all_reduce(vector(), dist.ReduceOp.MIN, group=group),  # others
    ),
    "root": (
        lambda group: dist.broadcast(vector(), 0, group=group),  # rank 0
        lambda group: dist.broadcast(vector(), 1, group=group),  # others
    ),
    "order": (
        lambda group: (
            dist.all_reduce(vector(3), group=group),
            dist.all_reduce(vector(4), group=group),
        ),  # rank 0
        lambda group: (
            dist.all_reduce(vector(4), group=group),
            dist.all_reduce(vector(3), group=group),
        ),  # others
    ),
    "large": (
        lambda group: dist.all_reduce(vector(3000000), group=group),  # rank 0
        lambda group: dist.stream.all_gather(vector(12), vector(4), group=group),  # others
    ),
    "compute stream": (
        lambda group: dist.stream.all_reduce(vector(11), group=group, use_calc_stream=True),  # rank 0
        lambda group: dist.stream.all_reduce(vector(12), group=group, use_calc_stream=True),  # others
    ),
    "asynchronous": (
        lambda group: dist.all_reduce(vector(11), group=group, sync_op=False).wait(),  # rank 0
        lambda group: dist.all_reduce(vector(12), group=group, sync_op=False).wait(),  # others
    ),
    "parts": (
        lambda group: exchange(group, sent=2),  # rank 0
        lambda group: exchange(group, sent=1),  # others
    ),
}


def exchange(group, sent: int) -> None:
    """Sends this many elements to each rank and expects one from each."""
    n = group.nranks
    splits = {"in_split_sizes": [sent] * n, "out_split_sizes": [1] * n}
    dist.alltoall_single(vector(n), vector(sent * n), **splits, group=group)


def transfer(group) -> None:
    """Rank 0 sends other numbers than rank 1 expects; rank 2 is already at the next collective."""
    if dist.get_rank() == 0:
        dist.send(vector(5), 1, group=group)
    elif dist.get_rank() == 1:
        dist.recv(vector(5, "float64"), 0, group=group)
    dist.all_reduce(vector(), group=group)


def error_of(call) -> dict:
    """The error of ``call``, the seconds until it was raised, and the CPU time in seconds."""
    started, computed = time.monotonic(), time.process_time()
    try:
        call()
        error = ""
    except RuntimeError as caught:
        error = str(caught)
    return {"error": error, "seconds": time.monotonic() - started, "computed": time.process_time() - computed}


def mismatches(every: list[int]) -> dict:
    messages = {}
    for name, calls in MISMATCHES.items():
        group = dist.new_group(every)
        call = calls[min(dist.get_rank(), 1)]
        messages[name] = error_of(lambda call=call, group=group: call(group))
        messages[name]["again"] = error_of(lambda group=group: dist.all_reduce(vector(), group=group))
    group = dist.new_group(every)
    messages["transfer"] = error_of(lambda: transfer(group))
    messages["transfer"]["again"] = error_of(lambda: dist.all_reduce(vector(), group=group))
    # What broke were those groups only.
    total = vector()
    dist.all_reduce(total)
    messages["sum"] = float(total.sum())
    return messages


def wait_for_ever(first, second) -> None:
    """Each rank waits in a collective that another rank has not reached."""
    dist.all_reduce(vector(), group=first if dist.get_rank() == 0 else second)


def receive_in_a_circle(group) -> None:
    dist.recv(vector(), (dist.get_rank() + 1) % group.nranks, group=group)


def send_in_a_circle(group) -> None:
    dist.stream.send(vector(), (dist.get_rank() + 1) % group.nranks, group=group, use_calc_stream=True)
    dist.stream.recv(vector(), (dist.get_rank() - 1) % group.nranks, group=group, use_calc_stream=True)


def meet_in_flight(group) -> None:
    tasks = [dist.all_reduce(vector(100000), group=group, sync_op=False) for _ in range(3)]
    for task in tasks:
        task.wait()


def wait_until(happened) -> None:
    while not happened():
        time.sleep(0.01)


def rank_0_is_patient() -> bool:
    """Whether rank 0 has said that it waits for longer than the timeout."""
    return "so it keeps waiting" in Path(sys.argv[1], "0.log").read_text(errors="replace")


def rank_0_has_ended() -> bool:
    return Path(sys.argv[1], "0.json").exists()


def be_slow(group, until) -> None:
    """Rank 1 arrives when ``until()`` is true."""
    if dist.get_rank() == 1:
        wait_until(until)
    dist.all_reduce(vector(), group=group)


def wait_in_two_threads(first, second) -> None:
    """Rank 1 waits for the others in one thread and is slow in the other, which they wait for."""
    if dist.get_rank() != 1:
        dist.all_reduce(vector(), group=first)
        dist.all_reduce(vector(), group=second)
        return
    waiting = threading.Thread(target=lambda: dist.all_reduce(vector(), group=second))
    waiting.start()
    wait_until(rank_0_is_patient)
    dist.all_reduce(vector(), group=first)
    waiting.join()


def run_out_of_files(group) -> None:
    """Rank 0 cannot open a file while it waits for rank 1, which is slow."""
    store = dist.collective._default_store
    if dist.get_rank() == 0:
        store.set("rank 0 is about to wait", "yes")
    elif dist.get_rank() == 1:
        store.get("rank 0 is about to wait")  # waits for it
        time.sleep(1)  # in which rank 0 looks ten times whether rank 1 is still there
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if dist.get_rank() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        dist.all_reduce(vector(), group=group)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def be_started_again(group, other) -> dict:
    """Another process joins ``group`` as rank 1, when rank 0 has other files open."""
    folder, report = Path(sys.argv[1]), {}
    if dist.get_rank() == 0:
        files = [(folder / f"plain {i}").open("wb") for i in range(64)]  # one has the number of the group's
    dist.all_reduce(vector(), group=other)
    if dist.get_rank() == 1:
        program = [sys.executable, __file__, str(folder), "join", str(group.id), str(group.nranks)]
        report = json.loads(
            subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1]
        )
    dist.barrier()
    if dist.get_rank() == 0:
        report["sizes"] = sum(os.fstat(file.fileno()).st_size for file in files)
    return report


def join(group: int, ranks_of_group: int) -> dict:
    """The error in the other process. The store still has the group's name."""
    core = paddle.base.core
    host, port = os.environ["PADDLE_MASTER"].split(":")
    store = core.TCPStore(host, int(port), False, ranks_of_group, 60)
    again = core.ProcessGroupCustom.create(store, "npu", 1, ranks_of_group, group)
    return error_of(lambda: again.all_reduce(vector(), core.ReduceOp.SUM, True).wait())


def be_killed_in_a_meeting() -> None:
    """Rank 1 ends when it has written that it has come, and not yet that one more has.

    That it has come is the second word of its seat (segment.h), in which its process stands from byte 24 on.
    """
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    process = struct.pack("<i4xQ", os.getpid(), started)
    seats = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        # The descriptor that read the folder is no more.
        if link.exists() and "memfd:virtual_npu" in os.readlink(link) and link.stat().st_size > 1 << 20:
            with mmap.mmap(os.open(link, os.O_RDWR), 1 << 20) as header:
                for seat in range(0, len(header), 64):
                    if header[seat + 24 : seat + 24 + len(process)] == process:
                        (arrived,) = struct.unpack_from("<I", header, seat + 4)
                        struct.pack_into("<I", header, seat + 4, arrived + 1)
                        seats += 1
    assert seats >= 3, "segment.h has been changed: change this"
    os.kill(os.getpid(), signal.SIGKILL)


# What rank 1 does, and what all others call meanwhile.
LOSSES = {
    "killed": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda group: dist.all_reduce(vector(), group=group),
    ),
    "killed while others wait for a transfer": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda group: dist.recv(vector(), 1, group=group),
    ),
    "killed while others are in flight": (lambda: os.kill(os.getpid(), signal.SIGKILL), meet_in_flight),
    "stopped": (
        lambda: os.kill(os.getpid(), signal.SIGSTOP),
        lambda group: dist.all_reduce(vector(), group=group),
    ),
    "killed in a meeting": (be_killed_in_a_meeting, lambda group: dist.all_reduce(vector(), group=group)),
    "ended": (lambda: sys.exit(0), lambda group: dist.all_reduce(vector(), group=group)),
    "left": (lambda: os._exit(0), lambda group: dist.broadcast(vector(), 0, group=group)),
}


def leave_in_flight(group) -> None:
    """Rank 1 calls a collective that no other rank calls, and exits."""
    if dist.get_rank() == 1:
        dist.all_reduce(vector(), group=group, sync_op=False)
        ranks.write({})
        sys.exit(0)


def run_program(size: int) -> None:
    """An all_reduce in a static program."""

    def double(x):
        dist.all_reduce(x)
        return x + x

    virtual_npu.prepare_ring("0", dist.get_rank())
    paddle.jit.to_static(double, full_graph=True)(vector(size)).numpy()


def main() -> None:
    case = sys.argv[2]
    if case == "join":
        paddle.device.set_device("npu:1")
        print(json.dumps(join(*map(int, sys.argv[3:]))))
        return
    dist.init_parallel_env()
    every = list(range(dist.get_world_size()))
    first, second = dist.new_group(every), dist.new_group(every)
    for group in (None, first, second):  # all have joined
        dist.all_reduce(vector(), group=group)
    if case == "mismatches":
        report = mismatches(every)
    elif case == "uncaught":
        ranks.write({})
        dist.all_reduce(vector(10 + dist.get_rank()), group=first)
    elif case == "again":
        report = be_started_again(first, second)
    elif case in LOSSES:
        lose, call = LOSSES[case]
        if dist.get_rank() == 1:
            lose()
        report = error_of(lambda: call(first))
        report["again"] = error_of(lambda: call(first))
        report["other group"] = error_of(lambda: dist.all_reduce(vector(), group=second))
    else:
        calls = {
            "missing": lambda: wait_for_ever(first, second),
            "circle": lambda: receive_in_a_circle(first),
            "sends": lambda: send_in_a_circle(first),
            "slow": lambda: be_slow(first, until=rank_0_is_patient),
            "too slow": lambda: be_slow(first, until=rank_0_has_ended),
            "two threads": lambda: wait_in_two_threads(first, second),
            "static": lambda: run_program(10 + dist.get_rank()),
            "left in flight": lambda: (leave_in_flight(first), dist.all_reduce(vector(), group=second)),
            "no files": lambda: run_out_of_files(first),
        }
        report = error_of(calls[case])
    ranks.write(report)


if __name__ == "__main__":
    main()
