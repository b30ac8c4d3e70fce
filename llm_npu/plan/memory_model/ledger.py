"""Live memory by category, and the peak of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

CHUNK = 512  # Paddle's allocator rounds up to a multiple of it


def rounded(size: float) -> int:
    """Bytes that the allocator reserves for a tensor of ``size`` bytes."""
    return -(-int(size) // CHUNK) * CHUNK


@dataclass(frozen=True)
class Moment:
    """The peak memory of one phase of a step; ``parts``: ``bytes`` by category."""

    phase: str
    bytes: int
    parts: Mapping[str, int]


class Ledger:
    """Live tensors by name, each in a category such as "activations", and the peak of each phase."""

    def __init__(self):
        self.moments: list[Moment] = []
        self._tensors: dict[str, tuple[str, int]] = {}
        self._parts: Counter[str] = Counter()
        self._held = self._most = 0
        self._fullest: Mapping[str, int] = {}

    def take(self, name: str, size: float, part: str = "activations") -> None:
        """Allocate the tensor ``name`` of ``size`` bytes."""
        assert name not in self._tensors, name
        size = rounded(size)
        self._tensors[name] = part, size
        self._parts[part] += size
        self._held += size
        if self._held > self._most:
            self._most, self._fullest = self._held, dict(self._parts)

    def give(self, *names: str) -> None:
        """Free tensors; names that are not live are ignored."""
        for name in names:
            part, size = self._tensors.pop(name, ("", 0))
            self._parts[part] -= size
            self._held -= size

    def holds(self, name: str) -> bool:
        """Whether the tensor ``name`` is live."""
        return name in self._tensors

    def held(self, part: str) -> int:
        """The live bytes of a category."""
        return self._parts[part]

    def end(self, phase: str) -> None:
        """End a phase of the step and record its peak."""
        parts = {name: size for name, size in self._fullest.items() if size}
        self.moments.append(Moment(phase, self._most, parts))
        self._most, self._fullest = self._held, dict(self._parts)
