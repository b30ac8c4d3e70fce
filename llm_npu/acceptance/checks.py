"""The checks, in an order in which one fault explains the next, and the process of a check.

``python -m llm_npu.acceptance.checks JOB.json`` is that process.
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
    """One check, which runs in its own process.

    Attributes:
        title: its heading on the page.
        function: ``module.name`` in this package.
        seconds: time limit on a card, including the start of the process.
        silence: seconds without a case that begins or ends, after which it counts as hung; 0 for no limit.
        cards: how many it needs at least.
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
    Check("doctor", "The installation, by the doctor", "programs.doctor", 90),
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
    Check("training", "A training against the virtual NPU's losses", "training.train", 150),
    Check("resume", "The same training, stopped and resumed", "training.resume", 150),
    Check("profile", "A profile, and its report", "programs.profile", 120),
    Check("plan", "Speed and memory against the planner", "programs.plan", 180),
    Check("collectives", "Collectives and the values they give", "rank.collectives", 120, cards=2),
    Check("mc2", "Products fused with collectives against float64", "rank.mc2", 120, cards=2),
    Check("overlap", "The overlap planner", "rank.overlap", 120, cards=2),
    Check("two_cards", "The training on two cards", "training.on_two_cards", 150, cards=2),
    Check("all_cards", "The training on all cards", "training.on_all_cards", 180, cards=4),
)
BY_NAME = {check.name: check for check in CHECKS}
# A host CPU does the card's work and its own: its time limits are multiplied by this factor.
VIRTUAL_TIME_FACTOR = 3.0


@dataclass(frozen=True)
class Job:
    """The input of a check's process.

    Attributes:
        folder: of this check, empty at first.
        shared: the folder of all checks.
        device: "card" or "virtual".
        device_name: the commands' ``--device``.
        cards: how many to use at most.
        card: the cards' name for the planner.
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
        """The largest power of two up to ``cards``: the fused operators, heads and rows need one."""
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
