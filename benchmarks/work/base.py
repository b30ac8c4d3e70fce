"""The common interface of all measured operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from paddle_fused import registry
from paddle_fused.registry import Cost

ITEM_SIZE = {"float32": 4, "bfloat16": 2}
SAMPLES = 16  # rows, or columns, compared with the golden value


class Unavailable(Exception):
    """A contender does not support this operator; the message is the reason."""


@dataclass(frozen=True)
class Work:
    """An operator on tensors of one size.

    Attributes:
        outputs: names of the results.
        variables: the inputs whose gradients are computed. The gradient of input ``x`` is named ``dx``; the
            array ``dout`` is the gradient of output ``out`` (1 if there is no such array).
    """

    operator: ClassVar[str]
    registered: ClassVar[str] = ""  # its name in paddle_fused.registry, if different
    outputs: ClassVar[tuple[str, ...]] = ("out",)
    variables: ClassVar[tuple[str, ...]] = ()
    keep_float32: ClassVar[tuple[str, ...]] = ()
    is_random: ClassVar[bool] = False  # whether the golden values depend on the contender's random numbers

    @property
    def sizes(self) -> dict:
        return asdict(self)

    @property
    def cost_sizes(self) -> dict:
        """The arguments of the registered operator's cost."""
        return self.sizes

    @property
    def label(self) -> str:
        """The sizes, for display."""
        return "x".join(str(size) for size in self.sizes.values())

    def arrays(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Inputs and output gradients: float32, or integers."""
        raise NotImplementedError

    def samples(self, name: str) -> tuple:
        """The index of the compared part of output or gradient ``name``."""
        raise NotImplementedError

    def golden(self, arrays: dict, outputs: dict, backward: bool) -> dict[str, np.ndarray]:
        """Golden samples in float64. ``outputs`` are a contender's results, which show the elements that it
        dropped."""
        raise NotImplementedError

    def cost(self, item_size: int, backward: bool) -> Cost:
        """The registered operator's cost."""
        return registry.find(self.registered or self.operator).cost(item_size, backward, **self.cost_sizes)

    def memory(self, contender: str, item_size: int, backward: bool) -> int:
        """The approximate number of bytes that ``contender`` needs at once."""
        return 3 * self.cost(item_size, backward).bytes

    def paddle(self, tensors: dict, contender: str) -> Callable[[], tuple]:
        """A function that computes the outputs; contender: "fused", "composed", or "paddle" (own kernel)."""
        raise NotImplementedError

    def torch(self, tensors: dict) -> Callable[..., tuple]:
        """A function of the tensors (a dict) that computes the outputs, for eager and compiled."""
        raise NotImplementedError

    def compiled_by_torch(self, run: Callable[..., tuple]) -> Callable[..., tuple]:
        """The compiled version of the function `torch`."""
        import torch

        return torch.compile(run, dynamic=False)

    def from_torch(self, name: str, array: np.ndarray) -> np.ndarray:
        """``array`` in our layout, if torch's layout differs."""
        return array

    to_torch = from_torch


def filled(work: Work, dtype: str) -> dict[str, np.ndarray]:
    """The arrays of ``work``, the same in every process, rounded to ``dtype`` (and still float32)."""
    arrays = work.arrays(np.random.Generator(np.random.PCG64(0)))
    if dtype == "bfloat16":
        for name, array in arrays.items():
            if array.dtype == np.float32 and name not in work.keep_float32:
                arrays[name] = to_bfloat16(array)
    return arrays


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, ties to even. No NaN."""
    bits = array.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)).view(np.float32)


def uniform(random: np.random.Generator, *shape: int) -> np.ndarray:
    """float32 with mean 0 and variance 1."""
    drawn = random.random(shape, dtype=np.float32)
    drawn -= np.float32(0.5)
    drawn *= np.float32(12**0.5)
    return drawn


def spread_over(size: int, count: int = SAMPLES) -> np.ndarray:
    """``count`` indices from the first to the last."""
    return np.unique(np.linspace(0, size - 1, count).astype(int))


def blocks(rows: int, width: int) -> list[slice]:
    """Slices of the rows with a few million elements each: a whole float64 tensor would be too large."""
    step = max(1, 2**22 // width)
    return [slice(start, start + step) for start in range(0, rows, step)]
