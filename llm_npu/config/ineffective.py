"""Arguments that PaddleNLP accepts and that change nothing in this run, with the reason."""

from __future__ import annotations

from .arguments import RunConfig


def ineffective(config: RunConfig) -> list[tuple[str, str]]:
    """(name, why) of every argument the user gave that has no effect in this run, in alphabetical order."""
    raise NotImplementedError
