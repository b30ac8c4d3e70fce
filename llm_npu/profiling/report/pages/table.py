"""A table of text. Importing it imports nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A heading, columns and rows of text; the first ``words`` columns are words, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int = 1
    remark: str = ""

    def text(self) -> str:
        """Its title, its rows with aligned columns, and its remark."""
        rows = [self.columns, *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.columns))]
        lines = [self.title]
        for row in rows:
            cells = [
                cell.ljust(width) if column < self.words else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        lines.insert(2, "  ".join("-" * width for width in widths))
        return "\n".join(lines + [self.remark] * bool(self.remark))


def shortened(text: str, longest: int = 60) -> str:
    """``text``, or its beginning followed by ``...``."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def share(part: float, whole: float) -> str:
    """A percentage."""
    return f"{100 * part / whole:.1f}%" if whole else ""
