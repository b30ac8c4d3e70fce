"""Adds up the memory that is in use at once, part by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

CHUNK = 512  # Paddle's allocator gives out multiples of it


def rounded(size: float) -> int:
    """Bytes that the allocator takes for a tensor of ``size`` bytes."""
    return -(-int(size) // CHUNK) * CHUNK


@dataclass(frozen=True)
class Moment:
    """The fullest moment of one phase of a step. ``parts``: what the ``bytes`` then held consist of."""

    phase: str
    bytes: int
    parts: Mapping[str, int]


class Ledger:
    """Tensors by name, each belonging to a part such as "activations", and the peak of each phase."""

    def __init__(self):
        self.moments: list[Moment] = []
        self._tensors: dict[str, tuple[str, int]] = {}
        self._parts: Counter[str] = Counter()
        self._held = self._most = 0
        self._fullest: Mapping[str, int] = {}

    def take(self, name: str, size: float, part: str = "activations") -> None:
        """Hold the tensor ``name`` of ``size`` bytes."""
        assert name not in self._tensors, name
        size = rounded(size)
        self._tensors[name] = part, size
        self._parts[part] += size
        self._held += size
        if self._held > self._most:
            self._most, self._fullest = self._held, dict(self._parts)

    def give(self, *names: str) -> None:
        """Give tensors back; those that are not held are passed over."""
        for name in names:
            part, size = self._tensors.pop(name, ("", 0))
            self._parts[part] -= size
            self._held -= size

    def holds(self, name: str) -> bool:
        """Whether the tensor ``name`` is held."""
        return name in self._tensors

    def held(self, part: str) -> int:
        """The bytes of a part that are held now."""
        return self._parts[part]

    def end(self, phase: str) -> None:
        """A phase of the step is over: note its fullest moment."""
        parts = {name: size for name, size in self._fullest.items() if size}
        self.moments.append(Moment(phase, self._most, parts))
        self._most, self._fullest = self._held, dict(self._parts)
