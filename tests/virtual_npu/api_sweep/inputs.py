"""Descriptions of input arrays: a shape, a domain and a layout, drawn anew (and always alike) for every run.

A description instead of an array lets one case be run again with another shape or memory layout. All floating
point inputs are float32 and, unless ``constant``, have their gradients compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy

Sampler = Callable[[numpy.random.RandomState, tuple[int, ...]], numpy.ndarray]


@dataclass(frozen=True)
class Draw:
    """An array to be drawn: ``sample(random, shape)``."""

    shape: tuple[int, ...]
    sample: Sampler
    differentiable: bool = False
    strided: bool = False
    fixed: bool = False  # keeps its shape and layout in every variation

    def array(self, random: numpy.random.RandomState) -> numpy.ndarray:
        return self.sample(random, self.shape)

    def reshaped(self, shape: tuple[int, ...]) -> Draw:
        return self if self.fixed else replace(self, shape=shape)

    def as_view(self) -> Draw:
        return self if self.fixed else replace(self, strided=True)


def _floating(low: float, high: float) -> Callable[..., Draw]:
    def draw(*shape: int) -> Draw:
        return Draw(shape, lambda random, s: numpy.asarray(random.uniform(low, high, s), "float32"), True)

    return draw


unit = _floating(-0.9, 0.9)  # inside (-1, 1): acos, atanh, erfinv
fraction = _floating(0.1, 0.9)  # probabilities
positive = _floating(0.5, 2.5)  # logarithms, roots, divisors
above_one = _floating(1.1, 3.0)  # acosh
wide = _floating(-4.0, 4.0)  # reaches the knees of hardswish, relu6, softshrink


def normal(*shape: int) -> Draw:
    """Standard normal."""
    return Draw(shape, lambda random, s: numpy.asarray(random.standard_normal(s), "float32"), True)


def ragged(*shape: int) -> Draw:
    """Standard normal with some NaN, for the functions that treat NaN apart."""

    def sample(random, s):
        array = numpy.asarray(random.standard_normal(s), "float32")
        return numpy.where(random.uniform(size=s) < 0.2, numpy.float32("nan"), array)

    return Draw(shape, sample, True)


def unbounded(*shape: int) -> Draw:
    """Standard normal with NaN and both infinities; no gradient."""

    def sample(random, s):
        special = numpy.asarray([numpy.nan, numpy.inf, -numpy.inf, 0.0, 1.0], "float32")
        return special[random.randint(0, special.size, s)]

    return Draw(shape, sample)


def ties(*shape: int) -> Draw:
    """Small whole numbers as float32: many equal elements; no gradient, which ties leave undefined."""
    return Draw(shape, lambda random, s: numpy.asarray(random.randint(-2, 3, s), "float32"))


def integers(high: int, *shape: int, low: int = 0, dtype: str = "int64") -> Draw:
    return Draw(shape, lambda random, s: numpy.asarray(random.randint(low, high, s), dtype))


def permutation(length: int) -> Draw:
    """Distinct indices 0..length-1 in some order."""
    return Draw((length,), lambda random, s: random.permutation(s[0]).astype("int64"))


def booleans(*shape: int) -> Draw:
    return Draw(shape, lambda random, s: numpy.asarray(random.uniform(size=s) < 0.5))


def complexes(*shape: int) -> Draw:
    """Standard complex normal, complex64."""

    def sample(random, s):
        return numpy.asarray(random.standard_normal(s) + 1j * random.standard_normal(s), "complex64")

    return Draw(shape, sample, True)


def definite(*shape: int) -> Draw:
    """Symmetric positive definite matrices with well separated eigenvalues."""

    def sample(random, s):
        root = random.uniform(-1, 1, s)
        spread = numpy.diag(2.0 * numpy.arange(1, s[-1] + 1))
        return (root @ numpy.swapaxes(root, -1, -2) + spread).astype("float32")

    return Draw(shape, sample, True)


def invertible(*shape: int) -> Draw:
    """Square matrices with a heavy diagonal."""

    def sample(random, s):
        return (random.uniform(-1, 1, s) + 2.0 * numpy.eye(s[-1])).astype("float32")

    return Draw(shape, sample, True)


def triangular(*shape: int) -> Draw:
    """Lower triangular matrices with a positive diagonal, the shape of a Cholesky factor."""

    def sample(random, s):
        return (numpy.tril(random.uniform(-1, 1, s)) + 2.0 * numpy.eye(s[-1])).astype("float32")

    return Draw(shape, sample, True)


def distribution(*shape: int) -> Draw:
    """Rows that sum to one."""

    def sample(random, s):
        weights = random.uniform(0.1, 1.0, s)
        return (weights / weights.sum(-1, keepdims=True)).astype("float32")

    return Draw(shape, sample, True)


def ordered(*shape: int) -> Draw:
    """Rows in rising order."""
    return Draw(shape, lambda random, s: numpy.sort(random.standard_normal(s), -1).astype("float32"), True)


def exactly(values, dtype: str | None = None) -> Draw:
    """The given values, contiguous; no gradient."""
    array = numpy.asarray(values, dtype)
    return Draw(array.shape, lambda random, s: array, fixed=True)


def constant(draw: Draw) -> Draw:
    """The same input without a gradient."""
    return replace(draw, differentiable=False)
