"""Detects the installed model library, PaddleNLP or PaddleFormers. Importing it imports neither.

Their dependencies are incompatible, so an environment has one of them. Each has a folder here with modules of
the same names; ``from llm_npu.models.library import families`` imports the module for the installed library.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

from llm_npu.core.errors import UserError

PADDLENLP, PADDLEFORMERS = LIBRARIES = ("paddlenlp", "paddleformers")
# Modules in each library's folder that the rest of llm_npu uses.
PARTS = (
    "adapter",
    "families",
    "names",
    "tokenizers",
)


def installed_or_none() -> str | None:
    """``paddlenlp`` or ``paddleformers``; None if neither is installed."""
    return next((name for name in LIBRARIES if importlib.util.find_spec(name) is not None), None)


def installed() -> str:
    """``paddlenlp`` or ``paddleformers``; Raises UserError if neither is installed."""
    if name := installed_or_none():
        return name
    raise UserError(
        "neither paddlenlp nor paddleformers is installed; in the project's folder, run "
        'pip install ".[paddlenlp]" or pip install ".[paddleformers]"'
    )


def after_each_build(change: Callable[[object], None] | None) -> None:
    """Call ``change(model)`` on every model built from now on; None removes the hook."""
    meta = sys.modules[__name__].adapter.InitTrackerMeta  # imports the library

    def build(cls, *args, **kwargs):
        model = type.__call__(cls, *args, **kwargs)
        change(model)
        return model

    if change is not None:
        meta.__call__ = build
    elif "__call__" in meta.__dict__:
        del meta.__call__


def __getattr__(name: str) -> ModuleType:
    if name in PARTS:
        # Without either library, the planner uses PaddleNLP's records.
        return importlib.import_module(f"llm_npu.models.{installed_or_none() or PADDLENLP}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
