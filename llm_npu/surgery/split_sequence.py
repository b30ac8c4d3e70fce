"""Layers of a model whose batches contain a part of every sequence, of equal length on each rank of a group.

Layers get the positions of their tokens in the whole sequence, and the mask of the whole sequence. Rotary
tables must cover the whole sequence, and attention needs the tokens of all ranks; everything else is local.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import paddle_fused
from llm_npu.core.errors import UserError

from .registry import find
from .swap import is_swapped, kernels_of

SPLIT = "_split_sequence"  # attribute of attention layers
OPERATOR = "attention"


class SplitAttention(Protocol):
    """Attention of a split sequence.

    Attributes:
        ranks: the number of ranks that share a sequence.
    """

    ranks: int

    def __call__(self, query, key, value, mask, **options):
        """`paddle_fused.flash_attention` of this rank's tokens with those of all ranks. Collective."""

    def operands(self, heads: int, key_heads: int, tokens: int) -> tuple[int, int, int]:
        """The heads, the key heads and the tokens of the operator's call on this rank."""

    def operator(self, query, key, value, mask, **options):
        """The operator that this rank calls with these operands."""


def split(model, attention: SplitAttention) -> None:
    """Make every attention layer of ``model``, which must be fused, use ``attention``.

    Raises:
        UserError: an attention layer is not fused.
    """
    for path, layer in find(OPERATOR).sites(model).items():
        if not (is_swapped(layer) and OPERATOR in kernels_of(layer)):
            raise UserError(
                f"{path} ({type(layer).__name__}) does not use the fused attention, which splits sequences "
                "over ranks; do not switch fused attention off"
            )
        layer.__dict__[SPLIT] = attention
        table = layer._sub_layers.get("rotary_emb")
        if table is not None:
            layer.__dict__["rotary_emb"] = _of_whole_sequence(table, attention.ranks)


def _of_whole_sequence(table, ranks: int):
    def rotary_emb(x, seq_len=None):
        return table(x, seq_len=seq_len * ranks)

    return rotary_emb


def attend(layer, query, key, value, mask, **options):
    """The attention of a layer: `paddle_fused.flash_attention`, or that of `split`."""
    attention = layer.__dict__.get(SPLIT, paddle_fused.flash_attention)
    return attention(query, key, value, mask, **options)


def operands(layer, heads: int, key_heads: int, tokens: int) -> tuple[int, int, int]:
    """The heads, the key heads and the tokens of the operator's call of an attention layer."""
    attention = layer.__dict__.get(SPLIT)
    return (heads, key_heads, tokens) if attention is None else attention.operands(heads, key_heads, tokens)


def operator(layer) -> Callable:
    """The operator that an attention layer calls with its ``operands``."""
    attention = layer.__dict__.get(SPLIT)
    return paddle_fused.flash_attention if attention is None else attention.operator


def whole_length(layer, tokens: int) -> int:
    """The length of the whole sequence if an attention layer has ``tokens`` of its tokens."""
    attention = layer.__dict__.get(SPLIT)
    return tokens if attention is None else tokens * attention.ranks


def refuse_weights(layer) -> None:
    """Raise UserError if the sequence is split: no rank has all attention scores of a query."""
    if SPLIT in layer.__dict__:
        raise UserError(
            "output_attentions: no rank has the attention weights of a sequence that is split over ranks; "
            "remove it"
        )
