"""The features tested on each release: commands of the guide, and tests."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from . import REFERENCE, suite
from .results import FAILED, YES, Outcome
from .suite import matches
from .trial import (
    APART,
    JOINED,
    LAST,
    RESOLUTION,
    Trial,
    losses,
    losses_decrease,
    matches_single_process,
    not_done,
    short_schedule,
)

INSTALL, MAIN, OTHERS = "install keeps Paddle", "main job", "checkpoints of another release"
UPSTREAM, FUSED = "upstream's tests", "Fused operators"
PYTHON = "python.txt"  # beside a kept checkpoint: the version that trained it
PIPELINE = {"pipeline_parallel_degree": 2, "gradient_accumulation_steps": 4}
TENSOR = {"tensor_parallel_degree": 2}
AUTO = {"enable_auto_parallel": "true"}


class Attempt(NamedTuple):
    """The test of the features ``names``, part of a short run if it is ``quick``.

    ``run`` gets the trial and the selected features.
    """

    names: tuple[str, ...]
    quick: bool
    run: Callable[[Trial, Collection[str]], dict[str, Outcome]]


def _tests(trial: Trial, wanted: Collection[str]) -> dict[str, Outcome]:
    return suite.run(trial.environment, trial.sources, wanted, trial.quick, trial.failed)


def _one(name: str, attempt: Callable[[Trial], Outcome], quick: bool = False) -> Attempt:
    return Attempt((name,), quick, lambda trial, wanted: {name: attempt(trial)})


def _main_job(trial: Trial) -> Outcome:
    if failed := not_done(trial.main):
        return failed
    _keep(trial)
    return losses_decrease(trial.losses("main"))


def _keep(trial: Trial) -> None:
    """Leaves the checkpoint to the other releases, with the facts that they need."""
    folder = trial.kept / str(trial.steps) / trial.release
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(trial.output("main") / trial.checkpoint, folder / trial.checkpoint)
    shutil.copy(trial.output("main") / "metrics.jsonl", folder)
    (folder / PYTHON).write_text(trial.python_version)


def others(trial: Trial) -> list[Path]:
    """The folders of other releases with checkpoints of this very job, the reference's first.

    Another Python trains on another text, that of its own library.
    """
    found = [
        file.parent
        for file in sorted(trial.kept.glob(f"{trial.steps}/*/{PYTHON}"))
        if file.parent.name != trial.release and file.read_text() == trial.python_version
    ]
    return sorted(found, key=lambda folder: folder.name != REFERENCE)


def _resume(trial: Trial) -> Outcome:
    """Training resumed from the checkpoint ends with the loss of the uninterrupted run."""
    if failed := not_done(trial.main):
        return Outcome(failed.state, f"the main job: {failed.words}")
    before = trial.output("main") / trial.checkpoint
    if failed := not_done(trial.train("resumed", {**trial.schedule(), "resume_from_checkpoint": before})):
        return failed
    once, again = trial.losses("main")[trial.steps], trial.losses("resumed").get(trial.steps)
    if again != once:
        return Outcome(FAILED, f"loss {again} after {trial.steps} steps, without a stop {once}")
    return Outcome(YES, f"bit-identical loss after {trial.steps} steps")


def _read_others(trial: Trial) -> dict[str, Outcome]:
    """The first steps after another release's checkpoint have that release's losses."""
    words = []
    for folder in others(trial):
        given = {**trial.schedule(), "resume_from_checkpoint": folder / trial.checkpoint}
        name = f"from-{folder.name}"
        if failed := not_done(trial.train(name, given)):
            return {OTHERS: Outcome(failed.state, f"{folder.name}'s: {failed.words}")}
        there, here = losses(folder / "metrics.jsonl"), trial.losses(name)
        step = trial.steps - LAST + 1
        words.append(f"{folder.name}'s: loss {here[step]:.4f} at step {step}, there {there[step]:.4f}")
        if abs(here[step] - there[step]) > RESOLUTION * there[step]:
            return {OTHERS: Outcome(FAILED, words[-1])}
    return {OTHERS: Outcome(YES, "; ".join(words))} if words else {}


def _pair(name: str, arguments: dict[str, object], alone: str) -> Callable[[Trial], Outcome]:
    """A short run on two processes; ``alone``: the run of one process with the same samples and weights."""

    def attempt(trial: Trial) -> Outcome:
        if alone and (failed := not_done(trial.alone(alone))):
            return Outcome(failed.state, f"on one process: {failed.words}")
        if failed := not_done(trial.train(name, {"nproc": 2, **short_schedule(), **arguments})):
            return failed
        found = trial.losses(name)
        return matches_single_process(found, trial.losses(alone)) if alone else losses_decrease(found)

    return attempt


def _profile(trial: Trial) -> Outcome:
    if failed := not_done(trial.train("profiled", {**short_schedule(), "profile": "steps=3:5"})):
        return failed
    module, folder = ("-m", "llm_npu.profiling"), trial.output("profiled") / "profile"
    done = trial.environment.run("report", *module, "report", folder, limit=600, folder=trial.folder)
    if failed := not_done(done):
        return failed
    return Outcome(YES, f"a report of {len(done.text.splitlines())} lines")


def _dry_run(trial: Trial) -> Outcome:
    arguments = {"model_name_or_path": "llama-110m", "max_steps": 2}
    done = trial.train("dry", arguments, VIRTUAL_NPU_DRY="1")
    if failed := not_done(done):
        return failed
    memory = re.search(r"^memory +(.*) at the most", done.text, re.MULTILINE)
    return Outcome(YES, f"llama-110m: {memory[1]}") if memory else Outcome(FAILED, "no memory was counted")


def _upstream(trial: Trial, wanted: Collection[str]) -> dict[str, Outcome]:
    """The fused operators' tests in a short run, else all; none without a checkout."""
    if trial.upstream is None:
        return {}
    scripts = trial.sources / "scripts"
    patterns = ["*"]
    if trial.quick:
        known = json.loads((scripts / "upstream_tests" / "known.json").read_text())
        patterns = next(group["files"] for group in known["groups"] if group["title"] == FUSED)
    done = trial.environment.run(
        "upstream",
        *(scripts / "run_upstream_tests.py", trial.upstream, "--only", *patterns),
        limit=4 * 3600,
        folder=trial.folder,
    )
    counted = re.search(r"^\*\*(.*)\*\*", done.text, re.MULTILINE)
    if done.code in (0, 1) and counted:
        why = "" if done.code == 0 else "; not all are explained"
        return {UPSTREAM: Outcome(FAILED if done.code else YES, counted[1] + why)}
    return {UPSTREAM: not_done(done) or Outcome(FAILED, done.last_line)}


def _both(name: str, arguments: dict[str, object], alone: str = "", quick: bool = False) -> Attempt:
    return _one(name, _pair(re.sub(r"\W+", "-", name), arguments, alone), quick)


# In order of use: a prerequisite of a later feature is run once.
ATTEMPTS = (
    _one(MAIN, _main_job, quick=True),
    _one("checkpoints: resume", _resume, quick=True),
    _both("tensor parallel", TENSOR, JOINED, quick=True),
    _both("sequence parallel", {**TENSOR, "sequence_parallel": "true"}, JOINED),
    *(_both(f"sharding stage {stage}", {"sharding": f"stage{stage}"}) for stage in (1, 2, 3)),
    _both("pipeline", PIPELINE),
    _both("auto-parallel, dygraph", {**AUTO, **TENSOR}, APART),
    _both("auto-parallel, static", {**AUTO, **TENSOR, "to_static": "true"}, APART),
    _both("auto-parallel, pipeline", {**AUTO, **PIPELINE}),
    _one("profiler", _profile),
    _one("dry run", _dry_run),
    Attempt((OTHERS,), True, lambda trial, wanted: _read_others(trial)),
    Attempt((*suite.GROUPS, suite.WHOLE), True, _tests),
    Attempt((UPSTREAM,), True, _upstream),
)
_TESTED = (*suite.GROUPS,)
_RUN = tuple(
    name for attempt in ATTEMPTS for name in attempt.names if name not in (*_TESTED, suite.WHOLE, UPSTREAM)
)
FEATURES = (INSTALL, *_TESTED, *_RUN, UPSTREAM, suite.WHOLE)  # in the order of the page


def tried(trial: Trial, patterns: Collection[str]) -> Iterator[dict[str, Outcome]]:
    """The outcomes of the features whose names match, one attempt after the other.

    A short run skips some unless they are requested.
    """
    some = trial.quick and "*" in patterns
    for attempt in ATTEMPTS:
        wanted = [name for name in attempt.names if matches(name, patterns)]
        if wanted and (attempt.quick or not some):
            yield attempt.run(trial, wanted)
