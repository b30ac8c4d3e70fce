"""Reads CSV tables robustly: truncated tables, unknown columns, and files that are not tables.

Cells of a profile's table contain no line breaks. Therefore every line is parsed separately, and an unclosed
quote damages only its own row. Memory holds the requested columns and a chunk of lines.
"""

from __future__ import annotations

import codecs
import csv
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import pandas as pd

from llm_npu.core.untrusted.plain_text import printable

LONGEST = 4 << 20  # characters of a line
CHUNK = 8 << 20  # characters converted at once; each row counts ROW additional characters
ROW = 200
NO_NUMBER = -1
_UNIT = re.compile(r"\s*\((\w+)\)$")
_HEAD, _TAIL = re.compile(r"\d{1,3}"), re.compile(r"\d{3}(\.\d+)?")  # of a number with separators


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        headings: its headings in the releases of CANN, without the unit.
        units: for numbers, a converter by the heading's unit, "" for none; it raises ValueError for a cell
            that is not a number.
        commas: matches text that may contain unquoted commas.
    """

    headings: tuple[str, ...]
    units: Mapping[str, Callable[[str], int]] | None = None
    commas: re.Pattern[str] | None = None

    def __str__(self) -> str:
        unit = next(iter(self.units or {}), "")
        return f"{self.headings[0]}({unit})" if unit else self.headings[0]


def read(
    path: Path, columns: Mapping[str, Column], needed: Sequence[str], notes: list[str]
) -> pd.DataFrame | None:
    """Read the existing ``columns`` by name, as text categories or integers (NO_NUMBER if unreadable).

    Problems are added to ``notes``. Returns None if the file or a ``needed`` column is unreadable.
    """
    try:
        with path.open(encoding=_encoding(path), errors="backslashreplace") as file:
            return _read(_Rows(file), path.name, columns, needed, notes)
    except OSError as error:
        notes.append(f"{path.name} cannot be read and was skipped: {error.strerror or error}.")
        return None


def _read(rows: _Rows, name: str, columns, needed, notes: list[str]) -> pd.DataFrame | None:
    header = _Header(rows.heading, columns)
    if missing := [column for column in needed if column not in header.places]:
        wanted = ", ".join(f'"{columns[column]}"' for column in missing)
        notes.append(f"{name} has no column {wanted} and was skipped; it is empty or another kind of table.")
        return None
    for column, unit in header.unknown_units:
        accepted = " and ".join(filter(None, columns[column].units))
        notes.append(
            f'{name} has "{columns[column].headings[0]}" in {printable(unit)} and was skipped: '
            f"the accepted unit is {accepted}. Export it again."
        )
        return None
    for column in header.ambiguous:
        notes.append(f'{name} has several columns "{columns[column].headings[0]}"; the first one is used.')
    table = _table(rows, header, columns)
    for count, what in (
        (rows.incomplete, "rows are incomplete (truncated, an unclosed quote, fewer cells than the heading)"),
        (rows.surplus, "rows have more cells than the heading and were skipped"),
        (rows.no_text, f"lines are binary or longer than {LONGEST >> 20} MiB and were skipped"),
    ):
        if count:
            notes.append(f"{name}: {count} {what}.")
    return table


class _Header:
    """The ``places`` and ``units`` of the columns by name, and problems of the heading."""

    def __init__(self, heading: list[str], columns: Mapping[str, Column]):
        names = {spelling: name for name, column in columns.items() for spelling in column.headings}
        self.places: dict[str, int] = {}
        self.units: dict[str, str] = {}
        self.ambiguous: dict[str, None] = {}
        for place, title in enumerate(heading):
            unit = _UNIT.search(title.strip())
            name = names.get(_UNIT.sub("", title.strip()))
            if name in self.places:
                self.ambiguous[name] = None
            elif name is not None:
                self.places[name], self.units[name] = place, unit[1] if unit else ""
        self.unknown_units = [
            (name, unit) for name, unit in self.units.items() if unit not in (columns[name].units or {unit})
        ]


class _Rows:
    """The heading and the rows of a table; ``size`` counts the characters of the rows."""

    def __init__(self, file: TextIO):
        self.incomplete = self.surplus = self.no_text = self.size = 0
        self._file = file
        self.heading = next(
            filter(None, (self._cells(line)[0] for line in self._lines() if line.strip())), []
        )

    def aligned(self, place: int, commas: re.Pattern[str] | None) -> Iterator[list[str]]:
        """The rows. Surplus cells are only accepted if, joined to cell ``place``, they match ``commas``."""
        width = len(self.heading)
        for line in self._lines():
            if line.isspace():
                continue
            cells, closed = self._cells(line)
            extra = len(cells) - width
            if extra > 0 and any(cell.strip() for cell in cells[width:]):
                text = ",".join(cells[place : place + extra + 1])
                if not commas or not commas.fullmatch(text) or _has_thousands(cells[: place + 1]):
                    self.surplus += 1
                    continue
                cells[place : place + extra + 1] = [text]
            if len(cells) < width or not closed:
                self.incomplete += 1
                if line[-1] != "\n":  # the last cell may be truncated
                    cells.pop()
                cells += [""] * (width - len(cells))
            self.size += len(line) + ROW
            yield cells

    def _lines(self) -> Iterator[str]:
        """Yield the text lines; count the others."""
        while line := self._file.readline(LONGEST):
            is_text = "\0" not in line
            while len(line) == LONGEST and line[-1] != "\n":
                line, is_text = self._file.readline(LONGEST), False
            if is_text:
                yield line
            else:
                self.no_text += 1

    @staticmethod
    def _cells(line: str) -> tuple[list[str], bool]:
        """The cells of a line, and whether all quotes are closed. Text after an unclosed quote is dropped."""
        try:
            cells = next(csv.reader((line.removesuffix("\n") + "\n",)))
        except csv.Error:  # a cell exceeds csv.field_size_limit, 128 KiB
            return [""], False
        if cells[-1][-1:] == "\n":  # the line ends inside quotes
            return [*cells[:-1], ""], False
        return cells, True


def _table(rows: _Rows, header: _Header, columns: Mapping[str, Column]) -> pd.DataFrame:
    names = list(header.places)
    parts = {name: array("q") for name in names}
    texts: dict[str, dict[str, int]] = {name: {} for name in names}
    wide = next((name for name in names if columns[name].commas), names[0])
    aligned = rows.aligned(header.places[wide], columns[wide].commas)
    for chunk in _chunks(rows, aligned, [header.places[name] for name in names]):
        for name, cells in zip(names, zip(*chunk, strict=True), strict=True):
            if units := columns[name].units:
                parts[name].extend(_numbers(cells, units[header.units[name]]))
            else:
                known = texts[name]
                parts[name].extend([known.setdefault(cell, len(known)) for cell in cells])
    arrays = {name: np.array(part, np.int64) for name, part in parts.items()}
    return pd.DataFrame(
        {
            name: values if columns[name].units else pd.Categorical.from_codes(values, list(texts[name]))
            for name, values in arrays.items()
        }
    )


def _chunks(rows: _Rows, aligned: Iterator[list[str]], places: list[int]) -> Iterator[list[tuple[str, ...]]]:
    pick = itemgetter(*places) if len(places) > 1 else lambda cells: (cells[places[0]],)
    chunk: list[tuple[str, ...]] = []
    for cells in aligned:
        chunk.append(pick(cells))
        if rows.size > CHUNK:
            yield chunk
            chunk, rows.size = [], 0
    if chunk:
        yield chunk


def _numbers(cells: Sequence[str], convert: Callable[[str], int]) -> Iterator[int]:
    for cell in cells:
        try:
            yield max(convert(cell), NO_NUMBER)
        except ValueError:
            yield NO_NUMBER


def _has_thousands(cells: list[str]) -> bool:
    """Whether adjacent cells look like parts of a number such as 1,020.5."""
    return any(
        _HEAD.fullmatch(head.strip()) and _TAIL.fullmatch(tail.strip()) for head, tail in pairwise(cells)
    )


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        begin = file.read(2)
    return "utf-16" if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
