"""The pieces, ordered so that one fault explains the next, and the process of a piece.

``python -m llm_npu.acceptance.pieces JOB.json`` is that process.
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
class Piece:
    """``title``: for the page. ``function``: ``module.name`` in this package.

    ``seconds``: time limit on a card, including the start of the process. ``silence``: seconds without the
    begin or end of a check after which it counts as hung, 0 for none. ``cards``: the minimum that it needs.
    ``goes_on``: if its process is lost in a check, another one continues with the next check.
    """

    name: str
    title: str
    function: str
    seconds: float
    silence: float = 0.0
    cards: int = 1
    goes_on: bool = False


PIECES = (
    Piece("doctor", "The installation, by the doctor", "programs.doctor", 90),
    Piece(
        "operators",
        "Every operator, dtype and mode of the device against float64",
        "operators.check",
        360,
        silence=60,
        goes_on=True,
    ),
    Piece("adamw", "AdamW against float64", "operators.adamw", 60),
    Piece("dtypes", "Tensors and kernels that leave the device's cores", "programs.dtypes", 90),
    Piece("training", "A training against the virtual NPU's losses", "training.train", 150),
    Piece("resume", "The same training, stopped and resumed", "training.resume", 150),
    Piece("profile", "A profile, and its report", "programs.profile", 120),
    Piece("plan", "Speed and memory against the planner", "programs.plan", 180),
    Piece("collectives", "Collectives and the values they give", "rank.collectives", 120, cards=2),
    Piece("mc2", "Products fused with collectives against float64", "rank.mc2", 120, cards=2),
    Piece("overlap", "The overlap planner", "rank.overlap", 120, cards=2),
    Piece("two_cards", "The training on two cards", "training.on_two_cards", 150, cards=2),
    Piece("all_cards", "The training on all cards", "training.on_all_cards", 180, cards=4),
)
BY_NAME = {piece.name: piece for piece in PIECES}
# A host CPU does the card's work and its own: its time limits are multiplied by this factor.
OF_THE_VIRTUAL_NPU = 3.0


@dataclass(frozen=True)
class Job:
    """The input of a piece's process.

    ``folder``: of this piece, empty at first. ``shared``: of all pieces. ``device``: "card" or "virtual";
    ``device_name``: for the commands' --device. ``cards``: the maximum number to use. ``card``: their name
    for the planner.
    """

    piece: str
    folder: Path
    shared: Path
    device: str
    device_name: str
    cards: int
    card: str

    @property
    def is_virtual(self) -> bool:
        return self.device == "virtual"

    def write(self) -> Path:
        file = self.folder / "job.json"
        file.write_text(strict_json.dumps(asdict(self), default=str))
        return file

    @classmethod
    def read(cls, file: Path) -> Job:
        found = json.loads(file.read_text())
        for name in ("folder", "shared"):
            found[name] = Path(found[name])
        return cls(**found)


def main(file: str) -> None:
    faulthandler.enable()  # the log shows where Python was when a signal came
    job = Job.read(Path(file))
    module, _, function = BY_NAME[job.piece].function.partition(".")
    getattr(importlib.import_module(f"{__package__}.{module}"), function)(job, Journal(job.folder))


if __name__ == "__main__":
    main(sys.argv[1])
