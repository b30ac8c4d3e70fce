"""A hook on the building of PaddleNLP's models. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Callable


def after_each(change: Callable[[object], None] | None) -> None:
    """Calls ``change(model)`` for each model built from here on; None ends this. Imports paddlenlp."""
    from paddlenlp.transformers.utils import InitTrackerMeta

    def build(cls, *args, **kwargs):
        model = type.__call__(cls, *args, **kwargs)
        change(model)
        return model

    if change is not None:
        InitTrackerMeta.__call__ = build
    elif "__call__" in InitTrackerMeta.__dict__:
        del InitTrackerMeta.__call__
