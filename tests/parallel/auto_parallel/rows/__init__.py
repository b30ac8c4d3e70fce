"""The table. Each file beside this one has a list ``ROWS``."""

from __future__ import annotations

import importlib
import pkgutil

from auto_parallel.row import Row


def all_rows() -> list[Row]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [row for name in modules for row in importlib.import_module(f"{__name__}.{name}").ROWS]
