"""Reads a virtual NPU's journal (VIRTUAL_NPU_JOURNAL): operators, collectives and allocation lifetimes.

    journal = read("step.jsonl")
    journal.steps[0].calls[0].flops
    journal.peak_bytes

The trainer's marks (``features.StepMarks``) divide the journal into steps. The journals of a real run and a
dry run of the same program contain the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from virtual_npu import STEP_BEGINS, STEP_ENDS

LONGEST = 1 << 20  # characters of a line
MOST_AXES = 32
GROUP = "group"
SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4,
    "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
UPDATES = ("adam", "adamw", "pf_adamw_", "pf_adamw_many_", "sgd", "momentum", "merged_momentum", "lamb")

Tensor = tuple[str, tuple[int, ...]]  # dtype, shape


@dataclass(frozen=True)
class Call:
    """One operator call. ``allocated``: bytes of all tensors on the device when it ends."""

    name: str
    dtype: str
    placement: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    allocated: int

    @property
    def bytes(self) -> int:
        """Bytes read and written, each tensor counted once."""
        return sum(_bytes(tensor) for tensor in (*self.inputs, *self.outputs))

    @property
    def flops(self) -> int:
        """FLOPs of matmuls and attention; for other operators, one per element of the largest tensor.

        Attention counts every query-key pair, regardless of the mask.
        """
        products = _products(self.name, [shape for _, shape in self.inputs], [s for _, s in self.outputs])
        if products is not None:
            return products
        return max((math.prod(shape) for _, shape in (*self.inputs, *self.outputs)), default=0)

    @property
    def kind(self) -> str:
        """The kind of operation, from the planner's ``llm_npu.plan.step_model.operations.KINDS``."""
        if self.placement != "npu":
            return "host"
        if self.name in UPDATES:
            return "optimizer"
        if "attention" in self.name:
            return "attention"
        return "vector" if _products(self.name, *self._shapes()) is None else "matmul"

    def _shapes(self) -> tuple[list, list]:
        return [shape for _, shape in self.inputs], [shape for _, shape in self.outputs]


@dataclass(frozen=True)
class Collective:
    """One collective or transfer.

    Attributes:
        group: "tp", "pp", "sharding", "dp", or "" for all processes.
        elements: Number of elements as in the API: those of one rank for all_gather and reduce_scatter.
        bytes: Bytes of ``elements``.
        stream: 0 is the compute stream.
    """

    kind: str
    group: str
    ranks: int
    peer: int
    dtype: str
    elements: int
    bytes: int
    stream: int

    @property
    def payload(self) -> int:
        """Bytes of the whole tensor, as in the planner's operations."""
        return self.bytes * (self.ranks if self.kind in ("all_gather", "reduce_scatter") else 1)


@dataclass(frozen=True)
class Allocation:
    """An allocation.

    Attributes:
        by: The operator that allocated it.
        begin, end: Line numbers of the journal; ``end`` is None if the allocation is never freed.
    """

    bytes: int
    by: str
    begin: int
    end: int | None


@dataclass
class RecordedStep:
    """The device calls of one step, in order; ``first`` and ``last`` are line numbers."""

    first: int
    last: int = 0
    calls: list[Call] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)

    @property
    def flops(self) -> int:
        return sum(call.flops for call in self.calls)


@dataclass(frozen=True)
class Journal:
    steps: list[RecordedStep]
    lives: list[Allocation]
    peak_bytes: int  # of all tensors on the device at the end of a call

    def held_at(self, line: int) -> dict[str, int]:
        """Bytes of the allocations that are live at a line, by allocating operator."""
        held: dict[str, int] = {}
        for life in self.lives:
            if life.begin <= line and (life.end is None or line < life.end):
                held[life.by] = held.get(life.by, 0) + life.bytes
        return held


def read(file: str | Path) -> Journal:
    """Read the journal in ``file``. Raises UserError, with the line, if it is not a journal."""
    with Path(file).open(encoding="utf-8", errors="replace") as lines:
        return _read(iter(lambda: lines.readline(LONGEST), ""), str(file))


def _read(lines: Iterable[str], name: str) -> Journal:
    steps: list[RecordedStep] = []
    lives: dict[int, Allocation] = {}
    groups: dict[str, str] = {}
    step, peak = None, 0
    for number, line in enumerate(lines):
        try:
            event = plain_json.loads(line)
            what = _text(event.pop("event"))
            if what == "operator":
                call = _call(event)
                _ = call.flops  # raises for invalid shapes
                peak = max(peak, call.allocated)
                if step:
                    step.calls.append(call)
            elif what == "collective" and step:
                step.collectives.append(_collective(event, groups))
            elif what == "allocate":
                lives[_number(event["id"])] = Allocation(
                    _number(event["bytes"]), _text(event["by"]), number, None
                )
            elif what == "free" and _number(event["id"]) in lives:
                life = lives[event["id"]]
                lives[event["id"]] = Allocation(life.bytes, life.by, life.begin, number)
            elif what == "mark" and _text(event["text"]).startswith(f"{GROUP} "):
                _, group, use = event["text"].split(" ")
                groups[group] = use
            elif what == "mark" and event["text"] == STEP_BEGINS:
                step = RecordedStep(number)
                steps.append(step)
            elif what == "mark" and event["text"] == STEP_ENDS and step:
                step.last = number
                step = None
        except (ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
            raise UserError(f"{name}, line {number + 1}, is not a journal line: {line[:80]!r}") from None
    return Journal(steps, list(lives.values()), peak)


def _call(event: dict) -> Call:
    inputs, outputs = (
        tuple((_text(dtype), _shape(shape)) for dtype, shape in event[key]) for key in ("inputs", "outputs")
    )
    name, dtype, placement = (_text(event[key]) for key in ("name", "dtype", "placement"))
    return Call(name, dtype, placement, inputs, outputs, _number(event["allocated"]))


def _collective(event: dict, groups: dict[str, str]) -> Collective:
    numbers = {name: _number(event[name]) for name in ("ranks", "peer", "elements", "bytes", "stream")}
    group = groups.get(_text(event["group"]), "")
    return Collective(_text(event["kind"]), group, dtype=_text(event["dtype"]), **numbers)


def _shape(value: object) -> tuple[int, ...]:
    shape = tuple(map(_number, value))
    if len(shape) > MOST_AXES or min(shape, default=0) < 0 or math.prod(shape) >= 1 << 63:
        raise TypeError
    return shape


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object) -> int:
    """Parse a 64-bit integer written by the plugin; -1 means no peer."""
    if type(value) is not int or not -1 <= value < 1 << 64:
        raise TypeError
    return value


def _bytes(tensor: Tensor) -> int:
    dtype, shape = tensor
    return SIZES.get(dtype, 0) * math.prod(shape)


def _products(name: str, inputs: list, outputs: list) -> int | None:
    """The FLOPs of an operator that multiplies matrices; None for other operators."""
    if name in ("matmul", "bmm") and len(inputs) > 1:
        return _matmul(inputs[0], outputs[0])
    if name in ("matmul_grad", "bmm_grad") and len(inputs) > 2:
        return len(outputs) * _matmul(inputs[0], inputs[2])
    if name == "fused_linear_param_grad_add" and len(inputs) > 1:
        return 2 * math.prod(inputs[0]) * inputs[1][-1]
    if name in ("fused_mm_allreduce", "fused_mm_reduce_scatter") and len(inputs) > 1:
        return 2 * math.prod(inputs[0]) * inputs[1][-1]
    if name == "fused_allgather_mm" and len(inputs) > 1:
        return 2 * math.prod(outputs[0]) * inputs[0][-1]
    if name in ("flash_attention_npu", "pf_flash_attention") and len(inputs) > 1:
        return 4 * _scores(*inputs[:2])
    if name in ("flash_attention_npu_grad", "pf_flash_attention_grad") and len(inputs) > 1:
        return 10 * _scores(*inputs[:2])  # five products instead of two
    if name == "pf_linear_cross_entropy" and len(inputs) > 1:
        return _head(*inputs[:2])
    if name in ("pf_linear_cross_entropy_grad", "pf_linear_cross_entropy_with_backward") and len(inputs) > 1:
        return 3 * _head(*inputs[:2])  # recomputed logits, and two gradients
    if name == "pf_grouped_matmul" and len(inputs) > 1:
        return 2 * math.prod(inputs[0]) * inputs[1][-1]
    return None


def _matmul(x: tuple[int, ...], out: tuple[int, ...]) -> int:
    """2 M N K for each matrix in the batch; x is [..., M, K] or its transpose."""
    if len(x) < 2:
        return 2 * math.prod(x) * (math.prod(out) or 1)
    rows = out[-2] if len(out) > 1 else 1
    return 2 * math.prod(out) * (x[-1] * x[-2] // rows) if rows else 0


def _scores(query: tuple[int, ...], key: tuple[int, ...]) -> int:
    """Number of scores times head size, from [B, S, N, D] or [T, N, D]."""
    keys = key[-3]
    return math.prod(query) * keys


def _head(hidden: tuple[int, ...], weight: tuple[int, ...]) -> int:
    vocabulary = math.prod(weight) // hidden[-1]
    return 2 * math.prod(hidden) * vocabulary
