"""Ring attention: its cases, and the bound for hidden transfers.

Contenders: ``serial`` waits for every transfer, ``overlapped`` is the operator, ``blocks`` sends nothing.

On two ranks, the forward pass computes two blocks of equal work: the own keys (while the other keys are
transferred) and the other keys. The backward pass computes half of the own block while the keys are
transferred, then the other rank's block, then the second half of the own block while the float32 gradients
return.
"""

from __future__ import annotations

from benchmarks import report, timing
from benchmarks.work import ITEM_SIZE

from . import jobs
from .cases import FORWARD, RANKS, RING, STEP, Case, link_speed

HEADS, KEY_HEADS, HEAD_DIM = 8, 2, 64
SERIAL, OVERLAPPED, BLOCKS, FORWARD_BLOCKS = "serial", "overlapped", "blocks", "blocks forward"
GOAL, GOAL_SECONDS = 0.9, 0.08


def case_of(dtype: str, way: str, tokens: int) -> Case:
    """``tokens`` per rank."""
    return Case(RING, way, dtype, tokens, HEAD_DIM, HEADS)


def sent(case: Case) -> list[int]:
    """Bytes of each transfer of a rank: keys and values; in a step also a second transfer, and gradients."""
    numbers = 2 * case.rows * KEY_HEADS * HEAD_DIM * (RANKS - 1)
    keys = numbers * ITEM_SIZE[case.dtype]
    return [keys] if case.way == FORWARD else [keys, keys, 4 * numbers]


def bound(case: Case, blocks: float, forward: float, transfers: float) -> float:
    """End time if every transfer overlaps the blocks that do not need it.

    Args:
        blocks: seconds of all blocks.
        forward: seconds of the blocks of the forward pass.
        transfers: seconds of all transfers.
    """
    total = sum(sent(case))
    times = [transfers * size / total for size in sent(case)]
    backward = blocks - forward
    lanes = [forward / 2, backward / 4, backward / 4]
    beside = sum(max(lane, time) for lane, time in zip(lanes, times, strict=False))
    return blocks - sum(lanes[: len(times)]) + beside


def bench(arguments, records: list[dict]) -> None:
    """Add the records of all links."""
    ways = [way for operator, way in arguments.work if operator == RING]
    for dtype in arguments.dtypes if ways else ():
        tokens = _tokens(arguments, dtype)
        cases = [case_of(dtype, way, tokens) for way in ways]
        computed = _medians(arguments, cases)
        for case, seconds in zip(cases, computed, strict=True):
            for ratio in arguments.ratios:
                speed = link_speed(sum(sent(case)), seconds, ratio)
                job = {"cases": [case.to_dict()], "rounds": arguments.rounds}
                (measurement,) = jobs.run(job, arguments.threads, speed)
                records += records_of(case, ratio, speed, measurement["seconds"])


def _tokens(arguments, dtype: str) -> int:
    """The tokens per rank for which the forward blocks take the time of a matmul."""
    tokens = 128 if arguments.quick else 512
    for _ in range(0 if arguments.quick else 2):
        (seconds,) = _medians(arguments, [case_of(dtype, FORWARD, tokens)])
        tokens = max(128, round(tokens * (arguments.milliseconds / 1e3 / seconds) ** 0.5 / 64) * 64)
    return tokens


def _medians(arguments, cases: list[Case]) -> list[float]:
    job = {"cases": [case.to_dict() for case in cases], "rounds": 5, "only": [BLOCKS]}
    measurements = jobs.run(job, arguments.threads)
    return [timing.summary(measurement["seconds"][BLOCKS]).median for measurement in measurements]


def records_of(case: Case, ratio: float, gbps: float | None, seconds: dict) -> list[dict]:
    medians = {name: timing.summary(times).median for name, times in seconds.items()}
    blocks, serial = medians[BLOCKS], medians[SERIAL]
    end = bound(case, blocks, medians.get(FORWARD_BLOCKS, blocks), max(0.0, serial - blocks))
    records = []
    for name, times in seconds.items():
        record = report.time_record(_timed(case, name, ratio), times, setting=name, ratio=ratio, gbps=gbps)
        if name in (SERIAL, OVERLAPPED):
            record |= {"gain": 1 - medians[name] / serial, "exposed": medians[name] - blocks}
        if name == OVERLAPPED and serial > end:
            record |= {"bound": end, "hidden": (serial - medians[name]) / (serial - end)}
            if ratio and case.way == STEP and blocks >= GOAL_SECONDS:
                left = report.Goal("left of what can be hidden", 1 - record["hidden"], 1 - GOAL)
                records.append(report.goal_record(_timed(case, name, ratio), left))
        records.append(record)
    return records


def _timed(case: Case, name: str, ratio: float) -> report.Timed:
    return report.Timed(case.operator, case.label, case.dtype, case.way, "on", f"{name} at ratio {ratio:g}")
