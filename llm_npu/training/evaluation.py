"""The loss over held-out samples: a mean over all labels, however they are batched and sharded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llm_npu.core import ranks
from llm_npu.data.pipeline import FirstSamples, Samples


def read_by_all(samples: Samples, arguments) -> FirstSamples:
    """The held-out ``samples`` that one evaluation reads, padded so that all ranks have the same batches."""
    batches, per_batch = arguments.max_evaluate_steps, arguments.per_device_eval_batch_size
    data_ranks = arguments.dataset_world_size
    most = batches * per_batch * data_ranks if batches > 0 else len(samples)
    count = min(most, len(samples))
    whole_batches = arguments.pipeline_parallel_degree > 1
    return FirstSamples(samples, count, padded_size(count, per_batch, data_ranks, whole_batches))


def padded_size(samples: int, per_batch: int, data_ranks: int, whole_batches: bool) -> int:
    """The number of samples, at least ``samples``, that gives every rank the same number of batches.

    Some kinds of parallelism communicate in the forward pass, so that every rank needs a batch.
    ``whole_batches``: a pipeline accepts no smaller last batch.
    """
    if data_ranks == 1 and not whole_batches:
        return samples
    per_round = per_batch * data_ranks
    return math.ceil(samples / per_round) * per_round


class Mean:
    """A weighted mean over the samples of all ranks, of several numbers at once."""

    def __init__(self):
        self._total: np.ndarray | float = 0.0
        self._weight = 0.0

    def add(self, means: Sequence[float], weight: float) -> None:
        """Add a batch with these ``means`` and total ``weight``."""
        if weight:
            self._total = self._total + np.asarray(means, dtype=np.float64) * weight
            self._weight += weight

    def everywhere(self, numbers: int) -> list[float]:
        """The ``numbers`` means, the same on every rank. Collective."""
        total = np.broadcast_to(self._total, numbers)  # 0 where this rank has added nothing
        *totals, weight = ranks.table([*total, self._weight]).sum(axis=0)
        return [float(each / weight) for each in totals]
