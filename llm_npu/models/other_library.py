"""What the installed library of models does not have, and the other one does: families and flags.

Importing it imports no framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from llm_npu.core.errors import UserError

from . import library
from .family import Family

TITLES = {library.PADDLENLP: "PaddleNLP", library.PADDLEFORMERS: "PaddleFormers"}
# Flags of what this project has for PaddleNLP's models only, and what to do beside PaddleFormers.
ONLY_PADDLENLP = {
    "enable_auto_parallel": "give --tensor_parallel_degree, --pipeline_parallel_degree or --sharding",
    "explain_parallel": "leave it out",
    "to_static": "leave it out",
    "overlap": "leave it out",
}


def hint(name: object) -> str:
    """A sentence, after a blank, about a model type or preset of the other library; empty for other names."""
    other, families = _other()
    for family in families.values():
        if name in (family.model_type, *family.presets, *family.aliases):
            return (
                f" {family.title} is trained with {TITLES[other]}: in an environment of its own, run "
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
    """Whether ``--name`` is for the other library's models only. Without either library no flag is."""
    return name in ONLY_PADDLENLP and library.installed_or_none() == library.PADDLEFORMERS


def refuse_flag(name: str) -> None:
    """UserError if ``--name`` is for the other library's models only."""
    if has_flag(name):
        raise UserError(
            f"--{name} works with PaddleNLP's models, and this environment has PaddleFormers; "
            f"{ONLY_PADDLENLP[name]}, or use an environment with the extra paddlenlp"
        )


def help_of_flag(name: str, help: str) -> str:
    """``help``, and where ``--name`` is for the other library's models only, a sentence about that."""
    if not has_flag(name):
        return help
    return f"{help.removesuffix('.')}. Only with PaddleNLP; beside PaddleFormers, {ONLY_PADDLENLP[name]}."
