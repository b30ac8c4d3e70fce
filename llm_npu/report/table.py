"""Tables as text and as Markdown. Imports no other module of the project."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, columns and rows of text. The first ``words`` columns are text, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int = 1
    remark: str = ""

    def text(self) -> str:
        """The title, the rows with aligned columns, and the remark."""
        heading, *lines = aligned([self.columns, *self.rows], self.words)
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [self.title, heading, "  ".join("-" * width for width in widths), *lines]
        return "\n".join(lines + [self.remark] * bool(self.remark))


def aligned(rows: Sequence[Sequence[str]], words: int | None = None) -> list[str]:
    """One line per row; the first ``words`` columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if words is None or column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, without a final newline."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def shortened(text: str, longest: int = 60) -> str:
    """``text``, or its beginning followed by ``...``."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def share(part: float, whole: float) -> str:
    """A percentage."""
    return f"{100 * part / whole:.1f}%" if whole else ""
