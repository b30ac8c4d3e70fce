"""Where a card would run an operator, given its dtypes: for a call, and for a captured (PIR) program."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import paddle
from paddle import nn

from virtual_npu import card_dtypes, placement
from virtual_npu.source_lines import FRAMEWORKS, of_callstack, operators

from . import sources
from .report import WIDE, Finding

DIALECT = "pd_op."


class Call(NamedTuple):
    """An operator that would leave the NPU's cores because of a dtype.

    Attributes:
        operand: the input or output with that dtype.
        is_source: whether no input has that dtype.
    """

    operand: object
    dtype: str
    place: str
    is_source: bool

    @classmethod
    def of(
        cls, kernel: str, inputs: Sequence, outputs: Sequence, dtype_of: Callable[[object], str]
    ) -> Call | None:
        """None for an operator that stays on the cores; ``dtype_of`` returns an operand's dtype name."""
        input_dtypes = [dtype_of(value) for value in inputs]
        operands = list(zip([*inputs, *outputs], [*input_dtypes, *map(dtype_of, outputs)], strict=True))
        wide = [(value, dtype) for value, dtype in operands if dtype in WIDE]
        if wide:
            value, dtype = max(wide, key=lambda pair: abs(math.prod(pair[0].shape)))
            place = "host" if leaves(kernel, dtype) == "host" else "aicpu"
            return cls(value, dtype, place, not any(dtype in WIDE for dtype in input_dtypes))
        # A kernel with operands of several dtypes is registered under one of them; only Paddle knows which
        # one.
        decisive = input_dtypes or [dtype for _, dtype in operands]
        if len(set(decisive)) == 1 and (place := leaves(kernel, decisive[0])):
            return cls(operands[0][0], decisive[0], place, True)
        return None

    def finding(self, kernel: str, layer: str, source) -> Finding:
        """The finding for this call of ``kernel``."""
        shape = tuple(self.operand.shape)
        return Finding("operator", kernel, self.dtype, self.place, shape, layer, source, self.is_source)


def leaves(kernel: str, dtype: str) -> str | None:
    """ "aicpu" or "host" if a card runs the kernel there for this dtype, but on its cores for others.

    None for a kernel that paddle-custom-npu lacks for all dtypes, because changing the dtype would not help.
    """
    place = placement(kernel, dtype)
    return place if card_dtypes(kernel) and place != "npu" else None


def dtype_of(value: object) -> str | None:
    """The dtype name of a tensor or an array, for example "float64"; None for other values."""
    if isinstance(value, paddle.Tensor):
        return _name(value.dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.name
    return None


@functools.cache
def _name(dtype: paddle.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def of_program(
    program, model: nn.Layer | None = None, packages: tuple[str, ...] = FRAMEWORKS
) -> Iterator[Finding]:
    """The operators of a PIR program and its inner blocks that would leave the cores.

    Args:
        model: searched for the layer of each operator.
        packages: lines in these packages are not reported.
    """
    for operator in operators(program.global_block()):
        if operator.name().startswith(DIALECT):
            yield from _of_operator(operator, model, packages)


def _of_operator(operator, model: nn.Layer | None, packages: tuple[str, ...]) -> Iterator[Finding]:
    inputs = [value for value in operator.operands_source() if _is_tensor(value)]
    outputs = [value for value in operator.results() if _is_tensor(value)]
    kernel = operator.name().removeprefix(DIALECT).removesuffix("_")
    call = Call.of(kernel, inputs, outputs, _value_dtype)
    if call is not None:
        source = of_callstack(operator.callstack, packages)
        yield call.finding(kernel, sources.layer_of_source(source, model), source)


def _is_tensor(value) -> bool:
    """Whether ``value`` is a tensor on the device. Some scalars are not, for example the ends of a range."""
    if not value.initialized() or not value.is_dense_tensor_type():
        return False
    maker = value.get_defining_op()
    return maker is None or maker.name() != "pd_op.full" or "cpu" not in str(maker.attrs()["place"])


def _value_dtype(value) -> str:
    return str(value.dtype).rpartition(".")[2].lower()
