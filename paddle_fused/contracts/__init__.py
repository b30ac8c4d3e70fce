"""What CANN's operators and the Paddle plugin accept: the only place where these limits and sentences stand.

    contracts.limit("attention.head_dim")  # a number, for the CANN level that is emulated
    contracts.dtypes("attention.dtype")  # the names of dtypes
    contracts.refuse("attention.head_dim", "flash_attention", "the head size is 900")  # raises ContractError
    contracts.reason("attention.head_dim", "flash_attention", "the head size is 900")  # its sentence

The rules of an operator stand in the ``contract.py`` of its folder, those of the plugin's products with
collectives here. The C++ operators take them from a header that the build writes
(csrc/virtual_npu/contracts_header.py), and ``python -m paddle_fused.contracts`` prints them as a page.
Contracts import nothing but the standard library, ``rule`` and each other.
"""

from __future__ import annotations

import functools
import importlib
from typing import NoReturn

from .. import registry
from . import matmul_collectives
from .rule import DEFAULT_CANN, ERRORS, ContractError, LaterLimit, Rule, cann_level

__all__ = [
    "DEFAULT_CANN",
    "DTYPES",
    "ERRORS",
    "FAMILIES",
    "LIMITS",
    "OPERATORS_BY_NAME",
    "PLUGIN_OPERATORS",
    "RULES",
    "ContractError",
    "LaterLimit",
    "Rule",
]
__all__ += ["cann_level", "dtypes", "limit", "reason", "refuse"]

# The plugin's operators that are called by name.
OPERATORS_BY_NAME = ("flash_attention_npu", "rms_norm_npu", "fused_rope", *matmul_collectives.PLUGIN)
# The virtual NPU's operators: their rules are compiled into it.
PLUGIN_OPERATORS = (*OPERATORS_BY_NAME, "swiglu_grad")


@functools.cache
def _tables() -> dict:
    # Not on import: the contracts import ``rule``, and so this package.
    families = (*map(importlib.import_module, registry.rule_modules()), matmul_collectives)
    return {
        "FAMILIES": families,
        "RULES": {rule.key: rule for family in families for rule in family.RULES},
        "LIMITS": {name: value for family in families for name, value in family.LIMITS.items()},
        "DTYPES": {name: value for family in families for name, value in family.DTYPES.items()},
    }


def __getattr__(name: str):
    """FAMILIES, the modules with rules; RULES, LIMITS and DTYPES, by key."""
    if name not in ("FAMILIES", "RULES", "LIMITS", "DTYPES"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _tables()[name]


def limit(name: str) -> int:
    """The number that stands for ``name`` in ``LIMITS``, for the CANN level that is emulated."""
    value = _tables()["LIMITS"][name]
    return value.at(cann_level()) if isinstance(value, LaterLimit) else value


def dtypes(name: str) -> tuple[str, ...]:
    """The dtypes that stand for ``name`` in ``DTYPES``, as Paddle spells them."""
    return _tables()["DTYPES"][name]


def refuse(key: str, operator: str, came: str) -> NoReturn:
    """Raises ContractError: ``operator`` was called with ``came``, which breaks the rule ``key``."""
    raise ContractError.of(_tables()["RULES"][key], operator, came)


def reason(key: str, operator: str, came: str) -> str:
    """The sentence that ``refuse`` raises, without a final dot: a backend's reason to refuse a call."""
    return _tables()["RULES"][key].sentence(operator, came).removesuffix(".")
