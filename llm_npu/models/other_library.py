"""Families and flags that exist only in the model library that is not installed.

Importing it imports no framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from llm_npu.core.errors import UserError

from . import library
from .family import Family

TITLES = {library.PADDLENLP: "PaddleNLP", library.PADDLEFORMERS: "PaddleFormers"}
# Flags that this project supports only with PaddleNLP, and what to use with PaddleFormers.
ONLY_PADDLENLP = {
    "enable_auto_parallel": "set --tensor_parallel_degree, --pipeline_parallel_degree or --sharding",
    "explain_parallel": "remove it",
    "to_static": "remove it",
    "overlap": "remove it",
}


def hint(name: object) -> str:
    """A sentence with a leading space if ``name`` is a model type or preset of the other library, else ""."""
    other, families = _other()
    for family in families.values():
        if name in (family.model_type, *family.presets, *family.aliases):
            return (
                f" {family.title} is trained with {TITLES[other]}: in a separate environment, run "
                f'pip install ".[{other}]".'
            )
    return ""


def family(model_type: str) -> Family | None:
    """The other library's record of a family, or None."""
    return _other()[1].get(model_type)


def title() -> str:
    """The name of the other library."""
    return TITLES[_other()[0]]


def _other() -> tuple[str, Mapping[str, Family]]:
    """The library that is not installed, and its families."""
    (other,) = (name for name in TITLES if name != (library.installed_or_none() or library.PADDLENLP))
    return other, importlib.import_module(f"llm_npu.models.{other}.families").FAMILIES


def has_flag(name: str) -> bool:
    """Whether ``--name`` works only with the other library. False if neither library is installed."""
    return name in ONLY_PADDLENLP and library.installed_or_none() == library.PADDLEFORMERS


def refuse_flag(name: str) -> None:
    """Raise UserError if ``--name`` works only with the other library."""
    if has_flag(name):
        raise UserError(
            f"--{name} needs PaddleNLP, but this environment has PaddleFormers; "
            f"{ONLY_PADDLENLP[name]}, or use an environment with the extra paddlenlp"
        )


def help_of_flag(name: str, help: str) -> str:
    """Append a sentence to ``help`` if ``--name`` works only with the other library."""
    if not has_flag(name):
        return help
    return f"{help.removesuffix('.')}. PaddleNLP only; with PaddleFormers, {ONLY_PADDLENLP[name]}."
