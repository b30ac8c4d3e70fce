"""What CANN's operators and the Paddle plugin accept: the only place where these limits and sentences stand.

    contracts.limit("attention.head_dim")  # a number, for the CANN level that is emulated
    contracts.dtypes("attention.dtype")  # the names of dtypes
    contracts.refuse("attention.head_dim", "flash_attention", "the head size is 900")  # raises ContractError
    contracts.reason("attention.head_dim", "flash_attention", "the head size is 900")  # its sentence

Rules are added to the file of their family. The C++ operators take them from a header that the build writes
(csrc/virtual_npu/contracts_header.py), and ``python -m paddle_fused.contracts`` writes docs/rules.md. Nothing
here imports anything but the standard library.
"""

from __future__ import annotations

from typing import NoReturn

from . import attention, attention_masks, matmul_collectives, moe, norms, optimizer, rotary
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
FAMILIES = (attention, attention_masks, norms, rotary, optimizer, moe, matmul_collectives)

RULES: dict[str, Rule] = {rule.key: rule for family in FAMILIES for rule in family.RULES}
LIMITS: dict[str, int | LaterLimit] = {
    name: value for family in FAMILIES for name, value in family.LIMITS.items()
}
DTYPES: dict[str, tuple[str, ...]] = {
    name: value for family in FAMILIES for name, value in family.DTYPES.items()
}


def limit(name: str) -> int:
    """The number that stands for ``name`` in ``LIMITS``, for the CANN level that is emulated."""
    value = LIMITS[name]
    return value.at(cann_level()) if isinstance(value, LaterLimit) else value


def dtypes(name: str) -> tuple[str, ...]:
    """The dtypes that stand for ``name`` in ``DTYPES``, as Paddle spells them."""
    return DTYPES[name]


def refuse(key: str, operator: str, came: str) -> NoReturn:
    """Raises ContractError: ``operator`` was called with ``came``, which breaks the rule ``key``."""
    raise ContractError.of(RULES[key], operator, came)


def reason(key: str, operator: str, came: str) -> str:
    """The sentence that ``refuse`` raises, without a final dot: a backend's reason to refuse a call."""
    return RULES[key].sentence(operator, came).removesuffix(".")
