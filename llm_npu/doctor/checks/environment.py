"""Environment variables without effect, or with a misleading name."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Finding, ok, warning
from ..setup import Setup


def variables(setup: Setup) -> Iterator[Finding]:
    """Environment variables whose names look like those of Paddle, HCCL or CANN.

    A problem: a misspelt name; one that nothing reads; one that only a card's libraries read.
    """
    # A late import: the package needs yaml, which may be missing.
    from llm_npu.config import ineffective_variables

    found = ineffective_variables(setup.kind, setup.environ)
    for name, why in found:
        yield warning(
            "variables", f"{name} has no effect: {why}", f"Run `unset {name}`, or correct its name."
        )
    if not found:
        yield ok("variables", "none is misspelt or ineffective")


CHECKS = {"variables": variables}
