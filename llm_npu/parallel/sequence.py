"""Sequences split over ranks, by ``--sep_parallel_degree`` (Ulysses) or ``--context_parallel_degree`` (ring).

The model is the same as in one process. Every batch is split along its tokens when it is collated, in
training and in evaluation: a rank has its part of ``input_ids``, ``labels`` and ``position_ids``, and the
mask of whole sequences. Attention exchanges tokens with the other ranks (``llm_npu.surgery.split_sequence``).

A rank's loss is the mean over its own labels, weighted by its share of the labels. Loss and gradients of one
process are the sums over the ranks that share a sequence; Paddle sums the gradients of the group ``sep``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from paddle.distributed import fleet

import paddle_fused
from llm_npu.core.ranks import communicators
from llm_npu.data.collate import Collator
from llm_npu.data.packing import IGNORED
from llm_npu.models.library import names
from llm_npu.surgery import split_sequence
from llm_npu.surgery.moe import router_scores
from llm_npu.training.run import Feature, Run
from llm_npu.training.trainer import PretrainTrainer
from paddle_fused.context_parallel import zigzag
from paddle_fused.context_parallel.heads import distribute
from paddle_fused.context_parallel.ring import ring_attention
from paddle_fused.context_parallel.ulysses import ulysses_attention


def contiguous(x: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    """The tokens of ``x``, which has the whole sequence, of a rank: the parts in rank order are ``x``."""
    return np.split(x, ranks, axis=1)[rank]


@dataclass(frozen=True)
class Part:
    """The tokens of a rank.

    Attributes:
        rank, ranks: the rank in the group that shares a sequence, and the number of its ranks.
        order: ``order(x, rank, ranks)`` selects the tokens of a rank.
        multiple: what the number of tokens of a sequence must be a multiple of.
    """

    rank: int
    ranks: int
    order: Callable = contiguous
    multiple: int = 0

    def of(self, x: np.ndarray) -> np.ndarray:
        return self.order(x, self.rank, self.ranks)


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

    def operator(self, query, key, value, mask, **options):
        return paddle_fused.flash_attention(query, key, value, mask, **options)

    def operands(self, heads: int, key_heads: int, tokens: int) -> tuple[int, int, int]:
        return *distribute(heads, key_heads, self.ranks).of(self.group.rank), tokens * self.ranks


@dataclass(frozen=True)
class Ring:
    """Attention with keys that circulate around a ring, a `split_sequence.SplitAttention`.

    Attributes:
        group, backward_group: the ranks of the ring, for its two directions. shared: the ranks at this
        position of the ring, each with a share of the heads; None for this rank alone.
    """

    group: object
    backward_group: object
    shared: Ulysses | None

    @property
    def ranks(self) -> int:
        return self.group.nranks * (1 if self.shared is None else self.shared.ranks)

    def __call__(self, query, key, value, mask, dropout=0.0, training=True, **options):
        assert not (dropout and training), dropout  # refused with the model's configuration
        attention = partial(self.operator, **options)
        if self.shared is None:
            return attention(query, key, value, mask)
        return ulysses_attention(query, key, value, mask, group=self.shared.group, attention=attention)

    def operator(self, query, key, value, mask, dropout=0.0, **options):
        groups = {"group": self.group, "backward_group": self.backward_group}
        return ring_attention(query, key, value, mask, **groups, **options)

    def operands(self, heads: int, key_heads: int, tokens: int) -> tuple[int, int, int]:
        if self.shared is None:
            return heads, key_heads, tokens
        return self.shared.operands(heads, key_heads, tokens)


def zigzag_shares(ring: int) -> Callable:
    """An ``order`` for `Part`: zigzag over ``ring`` positions, each split contiguously over its ranks."""

    def order(x: np.ndarray, rank: int, ranks: int) -> np.ndarray:
        place, share = divmod(rank, ranks // ring)
        return contiguous(zigzag.split(x, place, ring), share, ranks // ring)

    return order


def ring_of(ring: int) -> Ring:
    """The ring of this rank, among the ranks that share its sequence. Collective over all ranks.

    Neighboring ranks, which have the fastest links, share heads.
    """
    groups = []
    for sharers in fleet.get_hybrid_communicate_group().topology().get_comm_list("sep"):
        table = np.array(sharers).reshape(ring, -1)  # a column is a ring, the ranks of a row share heads
        for rows in (table.T, table.T, *([table] if table.shape[1] > 1 else [])):
            groups += rows.tolist()
    forward, backward, *shared = communicators(groups)
    return Ring(forward, backward, Ulysses(*shared) if shared else None)


class SplitSequences(Feature):
    """``--sep_parallel_degree`` and ``--context_parallel_degree``: ranks share the tokens of a sequence."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.sep_parallel_degree > 1

    def configure(self, run: Run) -> None:
        training, config = run.arguments.training, run.model_config
        self._ranks, self._ring = training.sep_parallel_degree, run.arguments.ring
        training.split_inputs_sequence_dim = False  # the library's split refuses masks and numbers
        config.sep_parallel_degree = 1  # the library's layers would split heads themselves
        setattr(config, names.LENGTH, run.arguments.data.max_seq_length // self._ranks)
        run.trainer_kind = SplitTrainer

    def on_trainer(self, run: Run) -> None:
        group = fleet.get_hybrid_communicate_group().get_sep_parallel_group()
        attention, part = Ulysses(group), Part(group.rank, self._ranks)
        if self._ring > 1:
            attention = ring_of(self._ring)
            multiple = self._ring * math.lcm(2, self._ranks // self._ring)
            part = replace(part, order=zigzag_shares(self._ring), multiple=multiple)
        split_sequence.split(run.model, attention)
        if getattr(run.model_config, router_scores.ROUTER_LOSS, False):
            router_scores.share(run.model, group)
        run.trainer.data_collator = SplitCollator(run.trainer.data_collator, part)
