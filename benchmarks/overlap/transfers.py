"""Operators that hide their own transfers: ring attention (ring.py) and expert parallelism (experts.py).

Both modules have ``OPERATOR``, ``GROWTH`` (the work grows with this power of the tokens), ``case_of``,
``sent`` and ``ends``.

Contenders: ``serial`` waits for every transfer, ``blocks`` sends nothing, and others hide transfers.
"""

from __future__ import annotations

from types import ModuleType

from benchmarks import report, timing

from . import jobs
from .cases import FORWARD, STEP, Case, link_speed

SERIAL, BLOCKS, FORWARD_BLOCKS = "serial", "blocks", "blocks forward"
GOAL, CHOICE_GOAL, GOAL_SECONDS = 0.9, 1.03, 0.08


def bench(module: ModuleType, arguments, records: list[dict]) -> None:
    """Add the records of all links."""
    ways = [way for operator, way in arguments.work if operator == module.OPERATOR]
    for dtype in arguments.dtypes if ways else ():
        tokens = _tokens(module, arguments, dtype)
        cases = [module.case_of(dtype, way, tokens) for way in ways]
        computed = _medians(arguments, cases)
        for case, seconds in zip(cases, computed, strict=True):
            for ratio in arguments.ratios:
                speed = link_speed(sum(module.sent(case)), seconds, ratio)
                job = {"cases": [case.to_dict()], "rounds": arguments.rounds}
                (measurement,) = jobs.run(job, arguments.threads, speed)
                records += records_of(module, case, ratio, speed, measurement)


def _tokens(module: ModuleType, arguments, dtype: str) -> int:
    """The tokens per rank for which the forward blocks take the time of a matmul."""
    tokens = 128 if arguments.quick else 512
    for _ in range(0 if arguments.quick else 2):
        (seconds,) = _medians(arguments, [module.case_of(dtype, FORWARD, tokens)])
        grown = tokens * (arguments.milliseconds / 1e3 / seconds) ** (1 / module.GROWTH)
        tokens = max(128, round(grown / 64) * 64)
    return tokens


def _medians(arguments, cases: list[Case]) -> list[float]:
    job = {"cases": [case.to_dict() for case in cases], "rounds": 5, "only": [BLOCKS]}
    measurements = jobs.run(job, arguments.threads)
    return [timing.summary(measurement["seconds"][BLOCKS]).median for measurement in measurements]


def records_of(module: ModuleType, case: Case, ratio: float, gbps: float | None, measurement: dict) -> list:
    """Times, and the goals: the best contender hides the transfers, and the planner's choice is good."""
    medians = {name: timing.summary(times).median for name, times in measurement["seconds"].items()}
    blocks, serial, ends = medians[BLOCKS], medians[SERIAL], module.ends(case, medians)
    records, hidden = [], {}
    for name, times in measurement["seconds"].items():
        record = report.time_record(_timed(case, name, ratio), times, setting=name, ratio=ratio, gbps=gbps)
        if name == SERIAL or name in ends:
            record |= {"gain": 1 - medians[name] / serial, "exposed": medians[name] - blocks}
        if name in ends and serial > ends[name]:
            hidden[name] = (serial - medians[name]) / (serial - ends[name])
            record |= {"bound": ends[name], "hidden": hidden[name]}
        records.append(record)
    if hidden and ratio and case.way == STEP and blocks >= GOAL_SECONDS:
        best = max(hidden, key=hidden.get)
        left = report.Goal("left of what can be hidden", 1 - hidden[best], 1 - GOAL)
        records.append(report.goal_record(_timed(case, best, ratio), left))
    if choice := measurement.get("choice"):
        loss = medians[choice] / min(medians[name] for name in (SERIAL, *ends))
        goal = report.Goal("the planner's choice / the best setting", loss, CHOICE_GOAL)
        records.append(report.goal_record(_timed(case, choice, ratio), goal))
    return records


def _timed(case: Case, name: str, ratio: float) -> report.Timed:
    return report.Timed(case.operator, case.label, case.dtype, case.way, "on", f"{name} at ratio {ratio:g}")
