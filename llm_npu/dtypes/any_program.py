"""Hooks around the import of paddle in a process of ``llm-npu dtypes run`` on a card."""

from __future__ import annotations


def before_library() -> None:
    """Nothing to do: no operator exists yet."""


def after_library() -> None:
    """Start watching operators."""
    from .operators import start

    start()
