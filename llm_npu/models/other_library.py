"""Families that the installed library of models does not have, and the other one does.

Importing it imports no framework.
"""

from __future__ import annotations

import importlib

from . import library

TITLES = {library.PADDLENLP: "PaddleNLP", library.PADDLEFORMERS: "PaddleFormers"}


def hint(name: object) -> str:
    """A sentence, after a blank, about a model type or preset of the other library; empty for other names."""
    (other,) = (each for each in TITLES if each != library.installed())
    families = importlib.import_module(f"llm_npu.models.{other}.families").FAMILIES
    for family in families.values():
        if name in (family.model_type, *family.presets, *family.aliases):
            return (
                f" {family.title} is trained with {TITLES[other]}: in an environment of its own, run "
                f'pip install ".[{other}]".'
            )
    return ""
