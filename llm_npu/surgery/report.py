"""The result of the surgery for each layer and operator: fused, or the reason why it is not."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """An operator of a layer; ``reason`` states why it is not fused."""

    layer: str
    kind: str
    operator: str
    fused: bool
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """The rows of all layers that compute an operator of the registered kernels."""

    model: str
    rows: Sequence[Row]

    def count(self, operator: str | None = None, fused: bool = True) -> int:
        """The number of fused (or unfused) rows, of one operator or of all."""
        return sum(row.fused == fused and operator in (None, row.operator) for row in self.rows)

    def operators(self) -> list[str]:
        return sorted({row.operator for row in self.rows})

    def reasons(self, operator: str) -> list[str]:
        """The distinct reasons why layers of this operator are not fused."""
        return sorted({row.reason for row in self.rows if row.operator == operator and not row.fused})

    def to_dict(self) -> dict:
        return {"model": self.model, "rows": [asdict(row) for row in self.rows]}

    def summary(self) -> str:
        """One line: ``attention 12 of 12, rms_norm 25 of 25, ...``."""
        return ", ".join(
            f"{name} {self.count(name)} of {self.count(name) + self.count(name, fused=False)}"
            for name in self.operators()
        )

    def __str__(self) -> str:
        table = Table(title=f"{self.model}: fused operators")
        for column in ("layer", "class", "operator", "fused", "reason"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(row.layer, row.kind, row.operator, "yes" if row.fused else "no", row.reason)
        text = io.StringIO()
        Console(file=text, width=160, markup=False, emoji=False, highlight=False).print(table)
        return text.getvalue()
