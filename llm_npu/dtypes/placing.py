"""Where a card would run an operator, given the dtypes of its inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from virtual_npu import card_dtypes, placement

from .report import WIDE


class Call(NamedTuple):
    """An operator that would leave the NPU's cores because of ``dtype``, the dtype of its operand ``blamed``.

    ``born``: no input has that dtype.
    """

    blamed: object
    dtype: str
    place: str
    born: bool

    @classmethod
    def of(
        cls, kernel: str, inputs: Sequence, outputs: Sequence, dtype_of: Callable[[object], str]
    ) -> Call | None:
        """None for an operator that stays on the cores; ``dtype_of`` an operand is "float64", for example."""
        going_in = [dtype_of(value) for value in inputs]
        all_of_them = list(zip([*inputs, *outputs], [*going_in, *map(dtype_of, outputs)], strict=True))
        wide = [(value, dtype) for value, dtype in all_of_them if dtype in WIDE]
        if wide:
            value, dtype = max(wide, key=lambda pair: abs(math.prod(pair[0].shape)))
            place = "host" if leaves(kernel, dtype) == "host" else "aicpu"
            return cls(value, dtype, place, not any(dtype in WIDE for dtype in going_in))
        # A kernel with operands of several dtypes is registered under one of them; only Paddle knows which
        # one.
        decisive = going_in or [dtype for _, dtype in all_of_them]
        if len(set(decisive)) == 1 and (place := leaves(kernel, decisive[0])):
            return cls(all_of_them[0][0], decisive[0], place, True)
        return None


def leaves(kernel: str, dtype: str) -> str | None:
    """ "aicpu" or "host", if a card runs the kernel there for this dtype, and on its cores for others.

    None for a kernel that paddle-custom-npu lacks for all dtypes: another dtype would not help.
    """
    place = placement(kernel, dtype)
    return place if card_dtypes(kernel) and place != "npu" else None
