"""Patches for PaddleFormers' trainer: jobs of several ranks, and evaluation."""

from __future__ import annotations

import functools


@functools.cache
def fix_gradient_clipping_in_float32() -> None:
    """PaddleFormers 1.1 and 1.2: a float32 job with tensor parallelism fails before its first step ("'AdamW'
    object has no attribute '_inner_opt'").

    ``_wrap_distributed_optimizer`` installs its log of the gradient norm through ``optimizer._inner_opt``,
    which only the optimizer of ``amp_master_grad`` has. The patch supplies the attribute while that method
    runs.
    """
    from paddleformers.trainer import Trainer

    upstream = Trainer._wrap_distributed_optimizer

    @functools.wraps(upstream)
    def _wrap_distributed_optimizer(self, optimizer):
        if hasattr(self.optimizer, "_inner_opt"):
            return upstream(self, optimizer)
        own = self.optimizer
        own._inner_opt = own
        try:
            return upstream(self, optimizer)
        finally:
            del own._inner_opt

    Trainer._wrap_distributed_optimizer = _wrap_distributed_optimizer


@functools.cache
def fix_evaluation_of_ranks() -> None:
    """PaddleFormers 1.1 and 1.2: with data parallelism, ``eval_loss`` is the mean over a part of the data.

    ``evaluation_loop`` gathers the losses of all ranks, and truncates them to the length of
    ``IterableDatasetShard``, which is the number of one rank's rows. With the patch, the shard has no length
    for the trainer, which then takes the number of rows that all ranks have read.
    """
    from paddleformers.trainer import trainer

    upstream = trainer.has_length

    @functools.wraps(upstream)
    def has_length(dataset):
        return not isinstance(dataset, trainer.IterableDatasetShard) and upstream(dataset)

    trainer.has_length = has_length


@functools.cache
def fix_last_row_of_evaluation() -> None:
    """PaddleFormers 1.2: without packing, the last row of the evaluation data is read twice.

    ``_generate_sequences`` yields each row in its loop, and the last one again behind the loop. The patch
    drops the repetition during evaluation. Training keeps upstream's order of rows.
    """
    from paddleformers.datasets.DPODataset import BaseDPODataSet
    from paddleformers.datasets.SFTDataset import BaseSFTDataset

    for dataset in (BaseSFTDataset, BaseDPODataSet):
        dataset._generate_sequences = _without_repetition(dataset._generate_sequences)


def _without_repetition(upstream):
    @functools.wraps(upstream)
    def _generate_sequences(self):
        last = None
        for row in upstream(self):
            if not (self.is_valid and row is last):
                yield row
            last = row

    return _generate_sequences
