"""Hooks that run before and after a process imports PaddleFormers' trainer.

The trainer takes seconds to import, so that ``llm_npu.patches.apply`` leaves it alone.
"""

from __future__ import annotations

from llm_npu.patches import paddleformers


def before_library() -> None:
    """Nothing to prepare."""


def after_library() -> None:
    paddleformers.apply_to_trainer()
