"""Sequences split over ranks: ``--sep_parallel_degree`` (Ulysses).

The model is that of one process. Every batch is split along its tokens when it is collated, in training and
in evaluation: a rank has its part of ``input_ids``, ``labels`` and ``position_ids``, and the mask of whole
sequences. Attention exchanges tokens with the other ranks (``llm_npu.surgery.split_sequence``).

A rank's loss is the mean over its own labels, weighted by its share of the labels. Loss and gradients of one
process are the sums over the ranks that share a sequence; Paddle sums the gradients of the group ``sep``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from paddle.distributed import fleet

from llm_npu.data.collate import Collator
from llm_npu.data.packing import IGNORED
from llm_npu.models.library import names
from llm_npu.surgery import split_sequence
from llm_npu.training.run import Feature, Run
from llm_npu.training.trainer import PretrainTrainer
from paddle_fused.context_parallel.ulysses import distribute, ulysses_attention


def contiguous(x, rank: int, ranks: int, axis: int = 1):
    """The tokens of ``x``, which has the whole sequence, of a rank: the parts in rank order are ``x``."""
    size, rest = divmod(x.shape[axis], ranks)
    assert not rest, (x.shape, ranks)
    before = (slice(None),) * (axis % x.ndim)
    return x[(*before, slice(rank * size, (rank + 1) * size))]


@dataclass(frozen=True)
class Part:
    """The tokens of a rank.

    Attributes:
        rank, ranks: the rank in the group that shares a sequence, and the number of its ranks.
        order: ``order(x, rank, ranks, axis)`` selects the tokens of a rank.
        multiple: what the number of tokens of a sequence must be a multiple of.
    """

    rank: int
    ranks: int
    order: Callable = contiguous
    multiple: int = 0

    def of(self, x, axis: int = 1):
        return self.order(x, self.rank, self.ranks, axis)


class SplitCollator:
    """Collates samples into a batch with this rank's part of every sequence.

    ``position_ids`` are the positions in the whole sequence or in its documents, [1, T] if all rows have the
    same. ``attention_mask`` is unchanged. ``loss_weight`` is multiplied by the rank's share of the labels.
    ``num_tokens`` counts the whole sequences, as on the other ranks.
    """

    def __init__(self, collate: Collator, part: Part):
        self.collate = replace(collate, multiple=part.multiple or part.ranks)
        self.part = part

    def __call__(self, samples: Sequence) -> dict:
        batch = self.collate(samples)
        if "position_ids" not in batch:
            batch["position_ids"] = np.arange(batch["input_ids"].shape[1])[None]
        labels = batch["labels"]
        for name in ("input_ids", "labels", "position_ids"):
            batch[name] = self.part.of(batch[name])
        if batch.get("loss_weight"):
            batch["loss_weight"] *= _labelled(batch["labels"]) / _labelled(labels)
        return batch


def _labelled(labels: np.ndarray) -> int:
    return int((labels != IGNORED).sum())


class SplitTrainer(PretrainTrainer):
    """The trainer of a model whose sequences are split."""

    def training_step(self, model, inputs, step_control=0):
        own = super().training_step(model, inputs, step_control)
        # The loss of a sequence is the sum over its ranks, but the mean over all ranks is reported.
        self.micro_batch_losses[-1] = own * self.args.sep_parallel_degree
        return self.micro_batch_losses[-1]


@dataclass(frozen=True)
class Ulysses:
    """Attention with a share of the heads on each rank, a `split_sequence.SplitAttention`."""

    group: object

    @property
    def ranks(self) -> int:
        return self.group.nranks

    def __call__(self, query, key, value, mask, **options):
        return ulysses_attention(query, key, value, mask, group=self.group, **options)

    def operands(self, heads: int, key_heads: int, tokens: int) -> tuple[int, int, int]:
        shared = distribute(heads, key_heads, self.ranks)
        first, end = shared.queries[self.group.rank]
        copies = shared.copies[self.group.rank]
        return end - first, len(copies) if len(set(copies)) == 1 else sum(copies), tokens * self.ranks


class SplitSequences(Feature):
    """``--sep_parallel_degree``: the tokens of a sequence are split over ranks."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.sep_parallel_degree > 1

    def configure(self, run: Run) -> None:
        training, config = run.arguments.training, run.model_config
        self._ranks = training.sep_parallel_degree
        training.split_inputs_sequence_dim = False  # the library's split refuses masks and numbers
        config.sep_parallel_degree = 1  # the library's layers would split heads themselves
        setattr(config, names.LENGTH, run.arguments.data.max_seq_length // self._ranks)
        run.trainer_kind = SplitTrainer

    def on_trainer(self, run: Run) -> None:
        group = fleet.get_hybrid_communicate_group().get_sep_parallel_group()
        split_sequence.split(run.model, Ulysses(group))
        run.trainer.data_collator = SplitCollator(run.trainer.data_collator, Part(group.rank, self._ranks))
