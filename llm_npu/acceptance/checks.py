"""The list of checks, ordered so that an early failure explains later ones, and the process of a check.

``python -m llm_npu.acceptance.checks JOB.json`` runs one check.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from paddle_fused import strict_json

from .journal import Journal


@dataclass(frozen=True)
class Check:
    """A check, which runs in its own process.

    Attributes:
        title: its heading on the page.
        function: ``module.name`` in this package.
        seconds: time limit on a card, including process startup.
        silence: seconds without a started or finished case before the check counts as hung; 0 for no limit.
        cards: minimum number of cards.
        restarts: whether a new process continues with the next case after a crash.
    """

    name: str
    title: str
    function: str
    seconds: float
    silence: float = 0.0
    cards: int = 1
    restarts: bool = False


CHECKS = (
    Check("doctor", "Installation (doctor)", "programs.doctor", 90),
    Check(
        "operators",
        "Every operator, dtype and mode of the device against float64",
        "operators.check",
        360,
        silence=60,
        restarts=True,
    ),
    Check("adamw", "AdamW against float64", "operators.adamw", 60),
    Check("dtypes", "Tensors and kernels that leave the device's cores", "programs.dtypes", 90),
    Check(
        "silent_errors",
        "Operators that CANN rejects, and the fused operators of a step against their definitions",
        "training.silent_errors",
        120,
    ),
    Check("training", "Training, compared with the virtual NPU's losses", "training.train", 150),
    Check("resume", "The same training, stopped and resumed", "training.resume", 150),
    Check("profile", "Profile and its report", "programs.profile", 120),
    Check("plan", "Speed and memory against the planner", "programs.plan", 180),
    Check("collectives", "Collectives and their results", "rank.collectives", 120, cards=2),
    Check("mc2", "Matmuls fused with collectives against float64", "rank.mc2", 120, cards=2),
    Check("overlap", "The overlap planner", "rank.overlap", 120, cards=2),
    Check("ring", "Ring attention against one card's attention", "rank.ring", 120, cards=2),
    Check("two_cards", "Training on two cards", "training.on_two_cards", 150, cards=2),
    Check("all_cards", "Training on all cards", "training.on_all_cards", 180, cards=4),
)
BY_NAME = {check.name: check for check in CHECKS}
# The host CPU also does the card's work, so its time limits are multiplied by this factor.
VIRTUAL_TIME_FACTOR = 3.0


@dataclass(frozen=True)
class Job:
    """The input of a check's process.

    Attributes:
        folder: the check's folder, initially empty.
        shared: the folder shared by all checks.
        device: "card" or "virtual".
        device_name: the commands' ``--device``.
        cards: maximum number of cards to use.
        card: the card name for the planner.
    """

    check: str
    folder: Path
    shared: Path
    device: str
    device_name: str
    cards: int
    card: str

    @property
    def is_virtual(self) -> bool:
        return self.device == "virtual"

    @property
    def ranks(self) -> int:
        """The largest power of two up to ``cards``; fused operators, heads and rows need a power of two."""
        return 1 << (self.cards.bit_length() - 1)

    def write(self) -> Path:
        file = self.folder / "job.json"
        file.write_text(strict_json.dumps(asdict(self), default=str))
        return file

    @classmethod
    def read(cls, file: Path) -> Job:
        fields = json.loads(file.read_text())
        return cls(**fields | {name: Path(fields[name]) for name in ("folder", "shared")})


def main(file: str) -> None:
    faulthandler.enable()  # a fatal signal prints Python's stack into the log
    job = Job.read(Path(file))
    module, _, function = BY_NAME[job.check].function.partition(".")
    getattr(importlib.import_module(f"{__package__}.{module}"), function)(job, Journal(job.folder))


if __name__ == "__main__":
    main(sys.argv[1])
