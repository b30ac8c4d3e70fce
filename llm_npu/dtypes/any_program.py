"""Prepares a process of ``llm-npu dtypes run`` on a card, around its import of paddle."""

from __future__ import annotations


def before_library() -> None:
    """Do nothing, because the operators do not exist yet."""


def after_library() -> None:
    """Watch operators from now on."""
    from .operators import start

    start()
