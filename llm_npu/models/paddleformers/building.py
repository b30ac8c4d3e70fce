"""A hook that runs after each of PaddleFormers' models is built. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Callable

from llm_npu.patches import paddleformers as patches


def after_each(change: Callable[[object], None] | None) -> None:
    """Call ``change(model)`` on every model built from now on; None removes the hook.

    Imports paddleformers.
    """
    patches.apply()
    from paddleformers.transformers.utils import InitTrackerMeta

    def build(cls, *args, **kwargs):
        model = type.__call__(cls, *args, **kwargs)
        change(model)
        return model

    if change is not None:
        InitTrackerMeta.__call__ = build
    elif "__call__" in InitTrackerMeta.__dict__:
        del InitTrackerMeta.__call__
