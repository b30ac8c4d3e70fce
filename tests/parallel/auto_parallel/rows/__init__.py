"""The table: the ``ROWS`` of each file beside this one, and a row for each operator that has none there."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np

from auto_parallel.row import Row
from paddle_fused import registry

# Its parameters and states are split: adamw_on_npu.py.
OPTIMIZERS = ("fused_adamw",)


def all_rows() -> list[Row]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    rows = [row for name in modules for row in importlib.import_module(f"{__name__}.{name}").ROWS]
    others = registry.operators().keys() - {row.operator for row in rows} - {*OPTIMIZERS}
    return rows + [by_rows(registry.find(name)) for name in sorted(others)]


def by_rows(operator: registry.Operator) -> Row:
    """An operator that computes row by row: its first case, split along dimension 0 in all tensors."""
    case = operator.cases()[0]
    arrays = case.arrays(np.random.default_rng(0))
    assert {array.shape[0] for array in arrays.values()} == {next(iter(arrays.values())).shape[0]}, case
    names = [f"output {i}" for i in range(len(case.golden(arrays)))]
    names += [f"gradient of {name}" for name in case.gradients]
    return Row(
        case.operator, case.name, split=dict.fromkeys(arrays, 0), placements=dict.fromkeys(names, "S0")
    )
