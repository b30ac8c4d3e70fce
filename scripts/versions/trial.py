"""One release under test: its environment, and runs of the main script there."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .commands import Ended
from .environment import Environment
from .results import FAILED, REFUSED, YES, Outcome

RESOLUTION = 2.0**-8  # relative precision of bfloat16, in which the compared trainings compute
LAST = 10  # steps after the checkpoint that is resumed
REFUSAL = "error: "  # prefix of the message of a program that ends with exit code 2
SHORT = 5  # steps of a run on two processes and of its single-process reference
# The single-process runs, by what is compared with them. Auto-parallel keeps projections separate that the
# trainer fuses otherwise, and so draws other random weights.
JOINED, APART = "alone-joined", "alone-apart"
ALONE = {JOINED: {}, APART: {"fuse_attention_qkv": "false", "fuse_attention_ffn": "false"}}


@dataclass
class Trial:
    """``sources``: a clone, ``folder``: for output, ``kept``: the main jobs' checkpoints of all releases,
    ``upstream``: a checkout of PaddleCustomDevice, ``failed``: only the test files that failed before,
    ``steps``: of the main job."""

    release: str
    environment: Environment
    sources: Path
    folder: Path
    kept: Path
    upstream: Path | None
    quick: bool
    failed: bool
    steps: int
    ran_alone: dict[str, Ended] = field(default_factory=dict)

    def train(
        self, name: str, arguments: Mapping[str, object], limit: float = 1800, **variables: str
    ) -> Ended:
        """Runs the main script, with its output in the folder ``name``."""
        script = self.sources / "scripts" / "run_llama_npu.py"
        given = {"output_dir": self.output(name), "overwrite_output_dir": "true", **arguments}
        words = (f"--{key}={value}" for key, value in given.items())
        return self.environment.run(name, script, *words, limit=limit, folder=self.folder, **variables)

    def output(self, name: str) -> Path:
        return self.folder / name

    def losses(self, name: str) -> dict[int, float]:
        """{step: loss} of a run."""
        return losses(self.output(name) / "metrics.jsonl")

    @functools.cached_property
    def python_version(self) -> str:
        return self.environment.version()

    def schedule(self) -> dict[str, object]:
        """The arguments of the main job, with a checkpoint before its last steps."""
        return {"max_steps": self.steps, "eval_steps": self.steps, "save_steps": self.steps - LAST}

    @property
    def checkpoint(self) -> str:
        return f"checkpoint-{self.steps - LAST}"

    @functools.cached_property
    def main(self) -> Ended:
        """The main job, run once."""
        return self.train("main", self.schedule(), limit=7200)

    def alone(self, name: str) -> Ended:
        """A short single-process run, one of ALONE, as a reference for others; run once."""
        if name not in self.ran_alone:
            self.ran_alone[name] = self.train(name, {**short_schedule(), **ALONE[name]})
        return self.ran_alone[name]


def short_schedule() -> dict[str, object]:
    """The arguments of a short run."""
    return {"max_steps": SHORT, "eval_steps": SHORT, "save_steps": SHORT}


def losses(file: Path) -> dict[int, float]:
    """{step: loss} of a run's metrics.jsonl."""
    records = map(json.loads, file.read_text().splitlines()) if file.is_file() else ()
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def not_done(done: Ended) -> Outcome | None:
    """Why a command failed, or None if it succeeded."""
    if done.code == 0:
        return None
    sentences = [line for line in done.text.splitlines() if line.startswith(REFUSAL)]
    if done.code == 2 and sentences:
        return Outcome(REFUSED, sentences[-1].removeprefix(REFUSAL))
    return Outcome(FAILED, f"{done.how}: {done.last_line[:300]}")


def losses_decrease(found: Mapping[int, float]) -> Outcome:
    """Whether the losses of a run decrease."""
    if len(found) < 2:
        return Outcome(FAILED, f"{len(found)} losses were recorded")
    first, last = found[min(found)], found[max(found)]
    return Outcome(YES if last < first else FAILED, f"loss {first:.3f} to {last:.3f}")


def matches_single_process(found: Mapping[int, float], one: Mapping[int, float]) -> Outcome:
    """Whether a run's losses decrease, and equal those of one process up to rounding."""
    outcome = losses_decrease(found)
    if outcome.state != YES:
        return outcome
    if found.keys() != one.keys():
        return Outcome(FAILED, f"losses of {len(found)} steps, of one process {len(one)}")
    far = max(abs(found[step] - one[step]) / one[step] for step in found)
    words = f"{outcome.words}, relatively {far:.1e} or less from one process's"
    if far > RESOLUTION:
        return Outcome(FAILED, f"{words}; {RESOLUTION:.1e} is allowed")
    return Outcome(YES, words)
