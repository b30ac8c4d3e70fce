"""Prepares a process of ``llm-npu dtypes run`` on a card, around its import of paddle."""

from __future__ import annotations


def before_library() -> None:
    """Does nothing: the operators do not exist yet."""


def after_library() -> None:
    """Watches operators from now on."""
    from .operators import start

    start()
