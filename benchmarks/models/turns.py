"""Runs the contenders of a family in alternating groups, after checking that their results agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain

from benchmarks import contest, timing
from benchmarks.contenders import Processes, contender
from benchmarks.contest import Wrong
from benchmarks.models.size import ModelSize

UNFUSED, FUSED = "unfused", "fused"
OPTIMIZER = "fused_adamw"
OPERATORS = ("attention", "rms_norm", "rotary", "swiglu", "moe", OPTIMIZER)
CONTENDERS = (UNFUSED, FUSED, *OPERATORS)
WAYS = ("train", "prefill", "decode")
OTHERS_IN_A_GROUP = 2  # in addition to the unfused model; limited by memory
STEPS_TO_VERIFY = 2  # training steps, which also warm up
SECONDS_EACH = 40.0  # time limit of a contender over all rounds; slower contenders get fewer rounds
# Difference of logits, relative to the largest logit. bfloat16 has 8 bits of precision, and every operator of
# every layer rounds.
LOGITS_TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Turns:
    """The results of the contenders of one group.

    Attributes:
        seconds: {way: {contender: [seconds]}}.
        memory: {"train" or "generation": {contender: bytes}}.
        launches: {contender: kernels of a training step}.
    """

    seconds: dict[str, dict[str, list[float]]]
    memory: dict[str, dict[str, int]]
    launches: dict[str, int] = field(default_factory=dict)


def groups(names: Sequence[str], has_experts: bool) -> list[list[str]]:
    """Groups of the contenders that a family supports; the unfused model is in every group."""
    others = [name for name in names if name != UNFUSED and (has_experts or name != "moe")]
    step = OTHERS_IN_A_GROUP
    return [[UNFUSED, *others[i : i + step]] for i in range(0, len(others), step)] or [[UNFUSED]]


def kernels(name: str) -> list[str] | str:
    """The kernels of ``llm_npu.surgery`` that a contender uses."""
    return {UNFUSED: [], OPTIMIZER: [], FUSED: "auto"}.get(name, [name])


def of_group(
    size: ModelSize, dtype: str, names: Sequence[str], ways: Sequence[str], rounds: int, start
) -> Turns:
    """Verify and time the contenders ``names``, each in a separate process."""
    table = {name: _contender(name, size, dtype) for name in names}
    with Processes(names, *start, table) as processes:
        turns = Turns({}, {})
        generation = [way for way in ways if way != "train"]
        if generation:
            verify_logits(dtype, _ask(processes, "logits"))
            turns.memory["generation"] = _ask(processes, "generation_memory")
        for way in generation:
            turns.seconds[way] = _take_turns(processes, way, rounds)
        if "train" in ways:
            contest.agree(dtype, _ask(processes, "losses", steps=STEPS_TO_VERIFY))
            turns.memory["train"] = _ask(processes, "train_memory")
            turns.launches.update(_ask(processes, "train_launches"))
            turns.seconds["train"] = _take_turns(processes, "train", rounds)
    return turns


def _contender(name: str, size: ModelSize, dtype: str):
    optimizer = {"fused_adamw": name in (FUSED, OPTIMIZER)}
    settings = {"kernels": kernels(name), **optimizer, "dtype": dtype, "size": asdict(size)}
    return contender(name, "paddle", "benchmarks.models.worker.ModelWorker", **settings)


def _ask(processes: dict, do: str, **request) -> dict:
    return {name: process.ask(do, **request)["ok"] for name, process in processes.items()}


def _take_turns(processes: dict, way: str, rounds: int) -> dict[str, list[float]]:
    first = _ask(processes, way)
    counts = {name: timing.rounds_within(seconds, rounds, SECONDS_EACH) for name, seconds in first.items()}
    return timing.interleaved(lambda name: processes[name].ask(way)["ok"], processes, counts, warm_up=0)


def verify_logits(dtype: str, logits: dict[str, list[list[float]]]) -> None:
    """Raise Wrong unless the logits of all contenders match those of the first."""
    (first, expected), *others = logits.items()
    largest = max(abs(value) for row in expected for value in row)
    for name, logits_of_other in others:
        for actual, wanted in zip(chain(*logits_of_other), chain(*expected), strict=True):
            if not abs(actual - wanted) <= LOGITS_TOLERANCE[dtype] * largest:
                raise Wrong(
                    f"{dtype}: a logit is {wanted:.6f} with {first}, {actual:.6f} with {name}; "
                    f"the largest is {largest:.6f}"
                )
