"""Command line and file -> RunConfig."""

from __future__ import annotations

from collections.abc import Sequence

from .arguments import RunConfig


def parse(argv: Sequence[str]) -> RunConfig:
    """The run that ``argv`` (without the program's name) asks for. Imports paddlenlp.

    ``argv`` may start with a YAML or JSON file of the same names; flags after it override it.
    ValueError with one sentence for unknown names (with the nearest known one), values of the wrong type and
    combinations that cannot work.
    """
    raise NotImplementedError
