"""Cases of every operator: what the tests, ``python -m paddle_fused.parity`` and the benchmarks run."""

from __future__ import annotations

import functools
import importlib
import pkgutil

import numpy as np

from .case import OpCase


def all_cases() -> list[OpCase]:
    """Every case of every operator; each file beside this one has a list ``CASES``."""
    return [case for module in _modules() for case in module.CASES]


def draw(operator: str, random: np.random.Generator) -> OpCase:
    """A random legal case of an operator, small enough to run thousands of.

    Each file beside this one has a table ``DRAW``: for each operator a function of the generator.
    """
    table = {name: function for module in _modules() for name, function in module.DRAW.items()}
    if operator not in table:
        raise ValueError(f"{operator!r} is not an operator; there are {', '.join(sorted(table))}.")
    return table[operator](random)


@functools.cache
def _modules() -> list:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names if name != "case"]
