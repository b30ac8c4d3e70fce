"""The results: a file for each release, written anew after each feature: an interrupted run loses none."""

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
    """Whether a feature is there (YES), or refused in a sentence, or failed; and what shows it."""

    state: str
    words: str


class Results:
    """What is known of one release: ``features`` by name, and ``losses`` of the main job by its steps."""

    def __init__(self, folder: Path, release: str):
        self.release, self.file = release, folder / f"{release}.json"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.features: dict[str, dict] = known.get("features", {})
        self.losses: dict[str, dict] = known.get("losses", {})

    def outcome(self, feature: str) -> Outcome | None:
        """What came of a feature; None if it has not been tried."""
        found = self.features.get(feature)
        return found and Outcome(found["state"], found["words"])

    def add(self, outcomes: dict[str, Outcome], **about: object) -> None:
        """Takes ``outcomes`` in place of older ones of the same features, and writes the file."""
        for name, outcome in outcomes.items():
            self.features[name] = {**outcome._asdict(), **about}
        self.write()

    def add_loss(self, steps: int, loss: float, python: str, commit: str) -> None:
        """Takes the main job's last loss, in place of one after as many steps, and writes the file."""
        self.losses[str(steps)] = {"loss": loss, "python": python, "commit": commit}
        self.write()

    def write(self) -> None:
        """The file has the old or the new content at every moment."""
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
    """What is known of each release."""
    return [Results(folder, release) for release in releases]
