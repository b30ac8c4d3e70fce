"""Writes a synthetic msprof profile of any size: steps of a small Llama on some ranks, with planted faults.

Nothing in it was measured. It is a sample of a report.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from paddle_fused import strict_json

_STAMP = "20240911120000"
_EPOCH = 1_726_000_000_000_000_000  # nanoseconds
_LAYER = (  # operator, engine, mean microseconds, dtypes, shapes
    ("RmsNorm", "AI_VECTOR_CORE", 9, "DT_BF16;FLOAT", "2,2048,4096;4096"),
    ("MatMulV2", "AI_CORE", 60, "DT_BF16;DT_BF16", "4096,4096;4096,6144"),
    ("RotaryPositionEmbedding", "AI_VECTOR_CORE", 7, "DT_BF16;DT_BF16;DT_BF16", "2,2048,32,128;1,2048,1,128"),
    ("FlashAttentionScore", "MIX_AIC", 45, "DT_BF16;DT_BF16;DT_BF16", "2,2048,32,128;2,2048,8,128"),
    ("MatMulV2", "AI_CORE", 40, "DT_BF16;DT_BF16", "4096,4096;4096,4096"),
    ("hcom_allReduce_", "HCCL", 35, "N/A", "N/A"),
    ("RmsNorm", "AI_VECTOR_CORE", 9, "DT_BF16;FLOAT", "2,2048,4096;4096"),
    ("MatMulV2", "AI_CORE", 110, "DT_BF16;DT_BF16", "4096,4096;4096,28672"),
    ("Swish", "AI_VECTOR_CORE", 12, "DT_BF16", "2,2048,14336"),
    ("Mul", "AI_VECTOR_CORE", 11, "DT_BF16;DT_BF16", "2,2048,14336;2,2048,14336"),
    ("MatMulV2", "AI_CORE", 70, "DT_BF16;DT_BF16", "4096,14336;14336,4096"),
    ("hcom_allReduce_", "HCCL", 35, "N/A", "N/A"),
    ("Add", "AI_VECTOR_CORE", 8, "DT_BF16;DT_BF16", "2,2048,4096;2,2048,4096"),
)
_STEP_END = (
    ("Cast", "AI_CPU", 90, "DOUBLE", "1"),
    ("masked_select", "HOST_CPU", 60, "FLOAT;BOOL", "4096;4096"),
    ("ApplyAdamWV2", "AI_VECTOR_CORE", 150, "FLOAT;DT_BF16", "4096,4096;4096,4096"),
)
_LAYERS_OF_A_STEP = 8
EVENTS_OF_A_TASK = 4  # its launch, itself, and the two ends of the arrow between them


def write(folder: Path, events: int, ranks: int = 1, seed: int = 0) -> int:
    """Create ``folder``/rank_N with about ``events`` events in total; return the number of tasks.

    The last rank computes 10 % more slowly, and the others wait for it.
    """
    count = events // EVENTS_OF_A_TASK // ranks
    for rank in range(ranks):
        _write_rank(
            folder / f"rank_{rank}", rank, count, ranks > 1 and rank == ranks - 1, random.Random(seed)
        )
    return count * ranks


def _write_rank(folder: Path, rank: int, count: int, slow: bool, choose: random.Random) -> None:
    output = folder / "PROF_000001_20240911120000000_MADEUP" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    step = [*(_LAYER * _LAYERS_OF_A_STEP), *_STEP_END]
    heading = (
        "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),"
        "Task Duration(us),Task Wait Time(us),Block Dim,Input Shapes,Input Data Types,Input Formats\n"
    )
    names = ((1, "CANN", "CPU"), (2, "Ascend Hardware", f"NPU {rank}"), (3, "Communication", f"NPU {rank}"))
    now, borders, number = _EPOCH, [_EPOCH], 0
    with (
        (output / f"op_summary_{_STAMP}.csv").open("w") as table,
        (output / f"msprof_{_STAMP}.json").open("w") as timeline,
    ):
        table.write(heading)
        meta = [
            {"name": f"process_{kind}", "ph": "M", "pid": pid, "tid": 0, "args": {key: text}}
            for pid, name, label in names
            for kind, key, text in (("name", "name", name), ("labels", "labels", label))
        ]
        timeline.write("[" + ",\n".join(map(strict_json.dumps, meta)))
        for number in range(count):
            operator = step[number % len(step)]
            _, engine, mean, *_ = operator
            length = round(1000 * mean * choose.uniform(0.9, 1.1))
            gap = round(1000 * choose.choice((0, 0, 0.5, 1, 6)))
            collective = engine == "HCCL"
            # The same numbers on all ranks: a rank that computes longer has shorter collectives.
            longer = round(0.1 * length) if slow and not collective else 0
            if slow and collective:
                length -= round(length / 3)
            now += gap
            _write_task((table, timeline), rank, number, operator, now, length + longer, gap)
            # Every other collective overlaps the next operators.
            now += length // 4 if collective and number % 2 else length + longer
            if (number + 1) % len(step) == 0:
                borders.append(now)
        timeline.write("\n]\n")
    _write_paddle(folder, borders)


def _write_task(files, rank: int, number: int, operator: tuple, start: int, length: int, gap: int) -> None:
    (table, timeline), (kind, engine, _, dtypes, shapes) = files, operator
    collective = engine == "HCCL"
    name = f"{kind}_517_{number}_1" if collective else f"aclnn{kind}_{kind}_{kind}"
    begin, duration = _microseconds(start), _microseconds(length)
    launch = _microseconds(start - (300 if gap > 5000 else 20_000))
    task, stream = ("N/A", "N/A") if collective else (number, 2)
    table.write(
        f"{rank},4294967295,{task},{stream},{name},{kind},dynamic,{engine},{begin}\t,{duration},"
        f'{_microseconds(gap)},20,"""{shapes}""",{dtypes},ND;ND\n'
    )
    host, place = f'"pid":1,"tid":9,"ts":"{launch}"', f'"pid":{3 if collective else 2},"tid":2,"ts":"{begin}"'
    arrow = f'"name":"HostToDevice{number}","id":"{number}","cat":"HostToDevice"'
    about = f'"args":{{"Task Type":"{engine}","Task Id":{number}}}'
    timeline.write(
        f',\n{{"name":"Node@launch",{host},"dur":1.5,"args":{{"level":"node"}},"ph":"X"}}'
        f',\n{{{arrow},"ph":"s",{host}}}'
        f',\n{{"name":"{name}",{place},"dur":{duration},{about},"ph":"X"}}'
        f',\n{{{arrow},"ph":"f","bp":"e",{place}}}'
    )


def _write_paddle(folder: Path, borders: list[int]) -> None:
    events = []
    for number, (start, end) in enumerate(itertools.pairwise(borders)):
        place = {"pid": 77, "tid": "77(Python)", "ph": "X"}
        exact = {"start_time": f"{(start - borders[0]) / 1000:.3f} us"}
        event = {"name": f"ProfileStep#{number}[1.000 ms]", "cat": "ProfileStep", **place}
        events.append({**event, "ts": start // 1000, "dur": (end - start) / 1000, "args": exact})
        for part in range(1, 20):
            when = start + (end - start) * part // 20
            used = (6 << 30) + (min(part, 20 - part) << 27)
            sizes = {"place": "Place(npu:0)", "current_allocated": used, "current_reserved": 8 << 30}
            events.append(
                {"name": "[memory]", **place, "ph": "i", "ts": when // 1000, "cat": "Allocate", "args": sizes}
            )
    (folder / "host.paddle_trace.json").write_text(strict_json.dumps({"traceEvents": events}))


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
