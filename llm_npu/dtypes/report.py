"""The findings of an audit or a watch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from virtual_npu import NARROWER, AICPUWarning, HostFallback
from virtual_npu.source_lines import Source

__all__ = ["WIDE", "AICPUWarning", "Finding", "Report", "Source", "report_of"]

WIDE = tuple(NARROWER)
SIZES = {"bool": 1, "complex64": 8, "complex128": 16}
PROCESSORS = {"aicpu": "the AICPU", "host": "the host"}


@dataclass(frozen=True)
class Finding:
    """A tensor or an operator that would leave the NPU's cores.

    Attributes:
        kind: parameter, buffer, constant, default dtype, optimizer state, master weight, learning rate, loss
            scaling, input or operator.
        name: the name of the tensor or kernel.
        place: "aicpu" or "host".
        layer: the path of the layer in the model; "" if unknown.
        source: the Python line; None if unknown.
        is_source: True for a tensor, and for an operator that creates float64 from other dtypes. False for an
            operator with a float64 input.
        count: number of occurrences.
    """

    kind: str
    name: str
    dtype: str
    place: str
    shape: tuple[int, ...] | None = None
    layer: str = ""
    source: Source | None = None
    is_source: bool = True
    count: int = 1

    @property
    def bytes(self) -> int | None:
        """The size of the tensor in bytes; None if its shape is unknown."""
        if self.shape is None or any(size < 0 for size in self.shape):
            return None
        return math.prod(self.shape) * _size(self.dtype)

    @property
    def fix(self) -> str:
        """The change that keeps it on the cores."""
        if self.kind == "operator":
            return HostFallback(self.name, self.place, self.dtype, self.shape, self.is_source).fix
        return FIXES[self.kind].format(narrow=NARROWER.get(self.dtype, "float32"))

    def __str__(self) -> str:
        place = f" of {self.layer}" if self.layer and self.kind == "operator" else ""
        shape = "" if self.shape is None else f" {list(self.shape)}"
        size = "" if self.bytes is None else f", {self.bytes:,} bytes"
        line = "" if self.source is None else f"\n    at {self.source}"
        often = f"\n    {self.count:,} times" if self.count > 1 else ""
        runs = "is for" if self.kind != "operator" else "would run on"
        where = f"{runs} {PROCESSORS[self.place]} of a card"
        return (
            f"{self.kind} {self.name}{place}: {self.dtype}{shape}{size}, {where}{line}\n    {self.fix}{often}"
        )

    def as_dict(self) -> dict:
        """For JSON."""
        source = None if self.source is None else dataclasses.asdict(self.source)
        more = {"source": source, "bytes": self.bytes, "fix": self.fix}
        return dataclasses.asdict(self) | more


# The fix for a tensor of each kind.
FIXES = {
    "parameter": "create it with dtype='{narrow}', or call model.to(dtype='{narrow}')",
    "buffer": "create it with paddle.to_tensor(array, dtype='{narrow}'): NumPy arrays are float64 by default",
    "constant": "store it as {narrow}: NumPy arrays are float64 by default and become float64 tensors",
    "default dtype": "call paddle.set_default_dtype('{narrow}'): Python floats currently become float64",
    "optimizer state": "store it as {narrow}: operators that update the parameter compute in its dtype",
    "master weight": "keep master weights in {narrow}",
    "learning rate": "use Python floats in the schedule: Paddle converts them to a float32 tensor",
    "loss scaling": "make the scale a {narrow} tensor",
    "input": "cast it in the data pipeline: array.astype('{narrow}')",
}


@dataclass(frozen=True)
class Report:
    """The findings, sources of float64 first; ``checked`` describes what was examined."""

    findings: tuple[Finding, ...]
    checked: str

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def summary(self) -> str:
        """One line."""
        if self.clean:
            return f"clean: {self.checked}"
        places = [finding.place for finding in self.findings]
        parts = [f"{places.count(place)} for {PROCESSORS[place]}" for place in PROCESSORS if place in places]
        return f"{len(places)} found ({', '.join(parts)} of a card): {self.checked}"

    def as_dict(self) -> dict:
        """For JSON."""
        findings = [finding.as_dict() for finding in self.findings]
        return {"clean": self.clean, "checked": self.checked, "findings": findings}

    def __str__(self) -> str:
        return "\n".join([self.summary(), *map(str, self.findings)])

    def __add__(self, other: Report) -> Report:
        return report_of([*self.findings, *other.findings], f"{self.checked}; {other.checked}")


def report_of(findings: Iterable[Finding], checked: str) -> Report:
    """The report with equal sites merged, and sources of float64 first."""
    sites: dict[Finding, int] = {}
    for finding in findings:
        site = dataclasses.replace(finding, count=0)
        sites[site] = sites.get(site, 0) + finding.count
    joined = [dataclasses.replace(site, count=count) for site, count in sites.items()]
    return Report(tuple(sorted(joined, key=lambda finding: not finding.is_source)), checked)


def _size(dtype: str) -> int:
    return SIZES.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
