"""All results, as written: ``result.json`` and ``index.html`` in one folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from paddle_fused import strict_json

from . import page
from .journal import DIFFERS, LOST, Check
from .scrub import Scrubber

JSON, PAGE = "result.json", "index.html"
DISTRIBUTIONS = ("paddlepaddle", "paddle-custom-npu", "paddlenlp", "paddle-ascend-llm", "numpy")
LABELS = {"virtual": "virtual NPU on the host CPU, not a card", "card": "Ascend card"}


@dataclass(frozen=True)
class Finished:
    """A piece with its checks, or the reason why it was ``left_out``.

    ``text``: the output of another program of the project about it. ``log``: the end of its log.
    """

    name: str
    title: str
    checks: tuple[Check, ...] = ()
    seconds: float = 0.0
    left_out: str = ""
    text: str = ""
    log: str = ""

    @property
    def verdict(self) -> str:
        found = {check.verdict for check in self.checks}
        return "left out" if self.left_out else next((v for v in (LOST, DIFFERS) if v in found), "same")


@dataclass
class Result:
    """``device``: "card" or "virtual"; ``cards``: how many were used."""

    device: str
    cards: int
    seconds: float = 0.0
    pieces: list[Finished] = field(default_factory=list)

    @property
    def label(self) -> str:
        return LABELS[self.device]

    @property
    def differences(self) -> list[tuple[str, Check]]:
        """Differences with the name of their piece; lost ones first."""
        found = [
            (piece.name, check)
            for piece in self.pieces
            for check in piece.checks
            if check.verdict in (LOST, DIFFERS)
        ]
        return sorted(found, key=lambda each: each[1].verdict != LOST)

    def as_dict(self, clean: Callable[[str], str]) -> dict[str, object]:
        """The text of other programs goes through ``clean``."""
        return {
            "device": self.device,
            "label": self.label,
            "cards": self.cards,
            "seconds": round(self.seconds, 1),
            "versions": versions(),
            "differences": [{"piece": name, **_named(check, clean)} for name, check in self.differences],
            "pieces": [
                {
                    "name": piece.name,
                    "title": piece.title,
                    "verdict": piece.verdict,
                    "seconds": round(piece.seconds, 1),
                    "left_out": piece.left_out,
                    "checks": [_named(check, clean) for check in piece.checks],
                    "text": clean(piece.text),
                    "log": clean(piece.log),
                }
                for piece in self.pieces
            ],
        }

    def write(self, folder: Path, scrubber: Scrubber) -> None:
        """Writes both files atomically."""
        content = self.as_dict(lambda text: printable(scrubber.text(text), keep=LAYOUT))
        for name, text in ((JSON, strict_json.dumps(content, indent=1) + "\n"), (PAGE, page.write(content))):
            fresh = folder / f".{name}"
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, folder / name)


def versions() -> dict[str, str]:
    """The versions of packages that affect the results."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _named(check: Check, clean: Callable[[str], str]) -> dict[str, str]:
    said = {
        "check": check.name,
        "verdict": check.verdict,
        "what": check.what,
        "expected": check.expected,
        "found": check.found,
    }
    return {key: value if key == "verdict" else clean(value) for key, value in said.items()}
