"""Many layer paths as a short text: ``llama.layers.0-11.self_attn``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product


def collapsed(paths: Sequence[str]) -> str:
    """Merge paths that differ only in their numbers, or only in their last part.

    >>> collapsed(["layers.0.a", "layers.1.a", "layers.0.b", "layers.1.b", "norm"])
    'layers.0-1.{a,b}, norm'
    """
    shapes: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for path in paths:
        words = path.split(".")
        shape = tuple("#" if word.isdecimal() else word for word in words)
        shapes.setdefault(shape, []).append(tuple(int(word) for word in words if word.isdecimal()))
    beside: dict[str, list[str]] = {}
    for shape, numbers in shapes.items():
        for name in _names(shape, numbers):
            parent, _, own = name.rpartition(".")
            beside.setdefault(parent, []).append(own)
    return ", ".join(name for parent, names in beside.items() for name in _joined(parent, names))


def _joined(parent: str, names: list[str]) -> list[str]:
    if not parent:
        return names
    return [f"{parent}.{names[0] if len(names) == 1 else '{' + ','.join(names) + '}'}"]


def _names(shape: tuple[str, ...], numbers: list[tuple[int, ...]]) -> list[str]:
    """A single name if ``numbers`` is a full product of its columns, else a name for each first number."""
    places = [sorted(set(place)) for place in zip(*numbers, strict=True)]
    if set(product(*places)) == set(numbers):
        return [_filled(shape, [ranges(place) for place in places])]
    names = []
    for first in places[0]:
        rest = [row[1:] for row in numbers if row[0] == first]
        fixed = list(shape)
        fixed[fixed.index("#")] = str(first)
        names += _names(tuple(fixed), rest)
    return names


def _filled(shape: tuple[str, ...], places: Sequence[str]) -> str:
    left = iter(places)
    return ".".join(next(left) if word == "#" else word for word in shape)


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text, with runs as ranges: ``0-3,7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
