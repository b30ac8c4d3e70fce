"""Which library of models this environment has: PaddleNLP or PaddleFormers. Importing it imports neither.

Their requirements exclude each other, so an environment has one of them. Each has a folder here with modules
of the same names; ``from llm_npu.models.library import families`` gives that of the installed library.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from llm_npu.core.errors import UserError

PADDLENLP, PADDLEFORMERS = LIBRARIES = ("paddlenlp", "paddleformers")
# What each library's folder has, for the rest of llm_npu.
PARTS = (
    "adapter",
    "families",
    "names",
    "tokenizers",
)


def found() -> str | None:
    """``paddlenlp`` or ``paddleformers``; None if neither is installed."""
    return next((name for name in LIBRARIES if importlib.util.find_spec(name) is not None), None)


def installed() -> str:
    """``paddlenlp`` or ``paddleformers``; UserError if neither is installed."""
    if name := found():
        return name
    raise UserError(
        "neither paddlenlp nor paddleformers is installed; in the project's folder, run "
        'pip install ".[paddlenlp]" or pip install ".[paddleformers]"'
    )


def __getattr__(name: str) -> ModuleType:
    if name in PARTS:
        # Without either, PaddleNLP's records still describe models for the planner.
        return importlib.import_module(f"llm_npu.models.{found() or PADDLENLP}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
