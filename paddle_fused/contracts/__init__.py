"""The rules of CANN's operators and of the Paddle plugin: the single source of dtypes, limits and messages.

    contracts.limit("attention.head_dim")  # a number, for the emulated CANN release
    contracts.dtypes("attention.dtype")  # the names of dtypes
    contracts.refuse("attention.head_dim", "flash_attention", "the head size is 900")  # raises ContractError
    contracts.reason("attention.head_dim", "flash_attention", "the head size is 900")  # the message as text

A rule contains the text, not the condition: ``op.py`` and virtual_npu/csrc/custom_ops check the arguments and
refer to the violated rule. The rules of an operator are in ``contract.py`` of its package; the rules of the
plugin's matmul-collective operators are in this package. The build writes all rules to a header for the C++
operators (virtual_npu/csrc/contracts_header.py), and ``python -m paddle_fused.contracts`` prints them as a
page. Contract modules import only the standard library, ``rule`` and each other.

A limit or an error number that differs between CANN releases is a ``ByRelease`` with its source. Other
differences are listed in ``CHANGES`` of a contract module. Both follow ``VIRTUAL_NPU_CANN``
(``cann_releases``).
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import NoReturn

from .. import cann_releases, registry
from . import matmul_collectives
from .rule import ERRORS, ByRelease, Change, ContractError, ContractRule

__all__ = [
    "CHANGES",
    "DTYPES",
    "ERRORS",
    "LIMITS",
    "MODULES",
    "OPERATORS_BY_NAME",
    "PLUGIN_OPERATORS",
    "RULES",
    "ByRelease",
    "Change",
    "ContractError",
    "ContractRule",
]
__all__ += ["dtypes", "limit", "reason", "refuse"]

# The plugin operators that are called by name.
OPERATORS_BY_NAME = ("flash_attention_npu", "rms_norm_npu", "fused_rope", *matmul_collectives.PLUGIN)
# The operators whose rules are compiled into the virtual NPU.
PLUGIN_OPERATORS = (*OPERATORS_BY_NAME, "swiglu_grad")


@functools.cache
def _tables() -> dict:
    # Not on import: the contract modules import ``rule`` and therefore this package.
    modules = (*map(importlib.import_module, registry.contract_modules()), matmul_collectives)
    return {
        "MODULES": modules,
        "RULES": {rule.key: rule for module in modules for rule in module.RULES},
        "LIMITS": {name: value for module in modules for name, value in module.LIMITS.items()},
        "DTYPES": {name: value for module in modules for name, value in module.DTYPES.items()},
        "CHANGES": tuple(change for module in modules for change in getattr(module, "CHANGES", ())),
    }


def __getattr__(name: str):
    """MODULES, the contract modules; RULES, LIMITS and DTYPES, by key; CHANGES between releases of CANN."""
    if name not in ("MODULES", "RULES", "LIMITS", "DTYPES", "CHANGES"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _tables()[name]


def limit(name: str) -> int:
    """The limit ``name`` of ``LIMITS``, for the release of CANN in effect (and the emulated card)."""
    value = _tables()["LIMITS"][name]
    if isinstance(value, ByRelease):
        return value.at(cann_releases.in_effect(), os.environ.get("VIRTUAL_NPU_CARD", ""))
    return value


def dtypes(name: str) -> tuple[str, ...]:
    """The dtypes ``name`` of ``DTYPES``, in Paddle's spelling."""
    return _tables()["DTYPES"][name]


def refuse(key: str, operator: str, received: str, note: str = "") -> NoReturn:
    """Raises ContractError: the call of ``operator`` violates the rule ``key``.

    Args:
        received: the offending values.
        note: a sentence on values that ``operator`` accepts beyond CANN.
    """
    raise ContractError.of(_tables()["RULES"][key], operator, received, note)


def reason(key: str, operator: str, received: str) -> str:
    """The message of ``refuse`` without its final period: a backend's reason to decline a call."""
    return _tables()["RULES"][key].sentence(operator, received).removesuffix(".")
