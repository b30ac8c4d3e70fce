"""The order in which samples are drawn, and their weight in the loss.

A sample is weighted by its number of labels: with n labels, and m labels on average over the samples of an
optimizer step, its ``loss_weight`` is n / m. The mean over a step of (batch loss, a mean over its labels) x
(mean weight of its samples) then equals the mean over all labels of the step, however it is split into
batches.
"""

from __future__ import annotations

import functools
from typing import Protocol

import numpy as np

from llm_npu.core.errors import UserError

from .rows import IGNORED


class Samples(Protocol):
    """The samples that an order draws from."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]: ...

    def labelled(self, index: int) -> int:
        """The number of labels of sample ``index`` that are not -100."""
        ...


class ShuffledSamples:
    """Item i is samples[p[i mod n]], n = len(samples), where p is the permutation of epoch i div n.

    p is a pure function of seed and epoch, so item i depends on the seed and i only: a run that resumes at i
    sees the same samples as an uninterrupted one. ``per_step`` items form an optimizer step.
    """

    def __init__(self, samples: Samples, num_samples: int, seed: int, per_step: int = 1):
        if not len(samples):
            raise UserError("there are no samples to train on")
        self._samples = samples
        self._num_samples = num_samples
        self._per_step = per_step
        # Two, because the samples of a step may span two epochs.
        self._order = functools.lru_cache(maxsize=2)(lambda epoch: permutation(seed, epoch, len(samples)))
        self._mean_labels = functools.lru_cache(maxsize=1)(self._mean_labels_of_step)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        number = self._number(index)
        weight = self._samples.labelled(number) / self._mean_labels(index // self._per_step)
        return self._samples[number] | {"loss_weight": weight}

    def _number(self, index: int) -> int:
        epoch, position = divmod(index, len(self._samples))
        return int(self._order(epoch)[position])

    def _mean_labels_of_step(self, step: int) -> float:
        items = range(step * self._per_step, (step + 1) * self._per_step)
        labels = sum(self._samples.labelled(self._number(item)) for item in items)
        if not labels:
            raise UserError(f"step {step + 1} has no label: all tokens of its samples are ignored")
        return labels / self._per_step


class FirstSamples:
    """The first ``count`` samples in order, weighted over all of them; used for evaluation.

    They are padded to ``padded`` items with the first sample, without labels and with weight 0.
    """

    def __init__(self, samples: Samples, count: int, padded: int = 0):
        self._samples = samples
        self._count = min(count, len(samples))
        self._padded = max(self._count, padded)
        labels = sum(samples.labelled(index) for index in range(self._count))
        if self._count and not labels:
            raise UserError("the evaluation has no label: all tokens of its samples are ignored")
        self._mean_labels = labels / max(1, self._count)

    def __len__(self) -> int:
        return self._padded

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self._padded:
            raise IndexError(f"sample {index} of {self._padded}")
        if index >= self._count:
            filler = self._samples[0]
            labels = np.full_like(filler["labels"], IGNORED)
            return filler | {"labels": labels, "loss_weight": 0.0}
        return self._samples[index] | {"loss_weight": self._samples.labelled(index) / self._mean_labels}


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The permutation of ``size`` samples for an epoch, int64 [size]; a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)
