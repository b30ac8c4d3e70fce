"""The backend of each layer's operators, and the reason for it, before the first step.

    for line in table(grouped(explain(model, report, batch, switches))):
        print(line)

Queries the dispatcher for every call of a fused layer, with tensors of the step's sizes; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

import paddle

import paddle_fused
from llm_npu.report.table import aligned

from .batch import Batch
from .names import collapsed
from .registry import find, scan
from .report import Report

UPSTREAM = "upstream"  # the layer is not fused
NOBODY, LATER = "none", "?"
COLUMNS = ("layers", "operator", "backend", "mode", "computed", "reason")


@dataclass(frozen=True)
class Line:
    """One operator of a layer, or of a group of layers.

    Attributes:
        backend: ascend, native or composed; "upstream" if the layer is not fused; "none" if no backend
            accepts the call; "?" if the backend is not known yet.
        computed: the share of the operator's defined work that is computed, for example of attention scores;
            None without a backend.
        reason: why a preferred backend was not used, or why the layer is not fused; "" for the first choice.
    """

    layers: str
    operator: str
    backend: str
    mode: str
    computed: float | None
    reason: str


def explain(
    model,
    report: Report,
    batch: Batch,
    switches: Mapping[str, bool | None] | None = None,
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> list[Line]:
    """A line for every layer and operator of ``report``, and for the layers that ``switches`` disable.

    Args:
        report: the result of ``apply_fused_kernels(model, **switches)``.
        reasons: switch -> why it is off without a user's setting.
    """
    layers = dict(model.named_sublayers(include_self=True))
    lines: dict[tuple[str, str], list[Line]] = {}
    for row in report.rows:
        layer = layers.get(row.layer)
        if layer is None or isinstance(layer, paddle.nn.Identity):  # on another stage of the pipeline
            continue
        if row.fused:
            lines[row.layer, row.operator] = _of_fused(row.layer, row.operator, layer, batch)
        else:
            lines[row.layer, row.operator] = [Line(row.layer, row.operator, UPSTREAM, "", None, row.reason)]
    for (path, name), calls in list(lines.items()):
        if calls and calls[0].backend != UPSTREAM:
            lines.pop((path, find(name).instead_of), None)
    return [*chain(*lines.values()), *_left_out(model, switches or {}, report.operators(), reasons)]


def _of_fused(path: str, name: str, layer, batch: Batch) -> list[Line]:
    example = find(name).example
    calls = example and example(layer, batch)
    if calls is None:
        return [Line(path, name, LATER, "", None, "it is chosen when the layer runs")]
    return [of_call(path, name, call) for call in calls]


def of_call(path: str, name: str, call: Callable[[], object]) -> Line:
    """The line of the operator that ``call`` runs; named ``name`` if it is rejected before dispatch."""
    try:
        report = paddle_fused.explain_dispatch(call)
    except ValueError as error:  # rejected before dispatch
        return Line(path, name, NOBODY, "", None, str(error))
    reason = "; ".join(f"not {backend}: {why}" for backend, why in report.refused.items())
    if report.chosen is None:
        return Line(path, report.operator, NOBODY, "", None, reason)
    support = report.support[report.chosen]
    return Line(path, report.operator, report.chosen, support.mode, support.computed, reason)


def _left_out(
    model, switches: Mapping[str, bool | None], applied: Sequence[str], reasons: Mapping[str, str]
) -> list[Line]:
    lines = []
    for kernel in scan().values():
        if switches.get(kernel.switch) is False:
            why = reasons.get(kernel.switch) or f"switched off by {kernel.switch}"
        elif switches.get(kernel.switch) or kernel.name in applied or not (why := kernel.left_out(model)):
            continue
        lines += [Line(path, kernel.name, UPSTREAM, "", None, why) for path in kernel.sites(model)]
    return lines


def grouped(lines: Iterable[Line]) -> list[Line]:
    """Merge lines that differ only in their layers, in the order of the first layer."""
    layers: dict[Line, list[str]] = {}
    for line in lines:
        layers.setdefault(replace(line, layers=""), []).append(line.layers)
    return [replace(line, layers=collapsed(paths)) for line, paths in layers.items()]


def table(lines: Sequence[Line]) -> list[str]:
    """Rows of text with a heading and aligned columns."""
    return aligned([COLUMNS, *(_cells(line) for line in lines)])


def _cells(line: Line) -> tuple[str, ...]:
    computed = "" if line.computed is None else f"{line.computed:.1%}"
    return line.layers, line.operator, line.backend, line.mode, computed, line.reason
