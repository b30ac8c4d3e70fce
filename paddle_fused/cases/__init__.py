"""Cases of every operator: what the tests, ``python -m paddle_fused.parity`` and the benchmarks run."""

from __future__ import annotations

import importlib
import pkgutil

from .case import OpCase


def all_cases() -> list[OpCase]:
    """Every case of every operator; each file beside this one has a list ``CASES``."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name != "case"]
    return [case for module in modules for case in module.CASES]
