"""The results: one file per release, rewritten after each feature, so that an interrupted run loses none."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from llm_npu.core import json_rows

YES, REFUSED, FAILED = "yes", "refused", "failed"


class Outcome(NamedTuple):
    """Whether a feature works (YES), is refused in a sentence, or failed; and the evidence."""

    state: str
    words: str


class Results:
    """The results of one release: ``features`` by name, and ``losses`` of the main job by number of steps."""

    def __init__(self, folder: Path, release: str):
        self.release, self.file = release, folder / f"{release}.json"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.features: dict[str, dict] = known.get("features", {})
        self.losses: dict[str, dict] = known.get("losses", {})

    def outcome(self, feature: str) -> Outcome | None:
        """The outcome of a feature; None if it has not been tested."""
        found = self.features.get(feature)
        return found and Outcome(found["state"], found["words"])

    def add(self, outcomes: dict[str, Outcome], **about: object) -> None:
        """Replaces older outcomes of the same features by ``outcomes``, and writes the file."""
        for name, outcome in outcomes.items():
            self.features[name] = {**outcome._asdict(), **about}
        self.write()

    def add_loss(self, steps: int, loss: float, python: str, commit: str) -> None:
        """Stores the main job's last loss, replacing one after as many steps, and writes the file."""
        self.losses[str(steps)] = {"loss": loss, "python": python, "commit": commit}
        self.write()

    def write(self) -> None:
        """Atomic: the file has the old or the new content at every moment."""
        content = {"release": self.release, "features": self.features, "losses": self.losses}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".unfinished-", dir=self.file.parent)
        try:
            with os.fdopen(handle, "w") as new:
                new.write(json_rows.dumps(content))
            os.chmod(name, 0o644)
            os.replace(name, self.file)
        except BaseException:
            os.unlink(name)
            raise


def read(folder: Path, releases: Iterable[str]) -> list[Results]:
    """The results of each release."""
    return [Results(folder, release) for release in releases]
