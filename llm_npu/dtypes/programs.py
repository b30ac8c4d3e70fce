"""Operators of a captured (PIR) program that would leave the NPU's cores."""

from __future__ import annotations

from collections.abc import Iterator

from paddle import nn

from virtual_npu.source_lines import FRAMEWORKS, of_callstack, operators

from . import sources
from .placing import Call
from .report import Finding

DIALECT = "pd_op."


def of_program(
    program, model: nn.Layer | None = None, packages: tuple[str, ...] = FRAMEWORKS
) -> Iterator[Finding]:
    """One finding for each such operator of ``program`` (a ``paddle.pir.Program``) and of its inner blocks.

    ``model``: the layers to search for an operator's layer. ``packages``: whose lines are not reported.
    """
    for operator in operators(program.global_block()):
        if operator.name().startswith(DIALECT):
            yield from _of_operator(operator, model, packages)


def _of_operator(operator, model: nn.Layer | None, packages: tuple[str, ...]) -> Iterator[Finding]:
    inputs = [value for value in operator.operands_source() if _is_tensor(value)]
    outputs = [value for value in operator.results() if _is_tensor(value)]
    kernel = operator.name().removeprefix(DIALECT).removesuffix("_")
    call = Call.of(kernel, inputs, outputs, _dtype)
    if call is not None:
        source = of_callstack(operator.callstack, packages)
        layer = sources.layer_of_source(source, model)
        shape = tuple(call.blamed.shape)
        yield Finding("operator", kernel, call.dtype, call.place, shape, layer, source, call.born)


def _is_tensor(value) -> bool:
    """Whether it is a tensor on the device: some scalars, such as the ends of a range, are on the host."""
    if not value.initialized() or not value.is_dense_tensor_type():
        return False
    maker = value.get_defining_op()
    return maker is None or maker.name() != "pd_op.full" or "cpu" not in str(maker.attrs()["place"])


def _dtype(value) -> str:
    return str(value.dtype).rpartition(".")[2].lower()
