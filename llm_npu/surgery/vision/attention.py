"""Attention between the patches of an image, or of a window: one call for all images of a batch.

The patches of all images are one sequence; each image or window is a document. Qwen2.5-VL calls its attention
once for each window, and Qwen3-VL describes the images by row indices. Here both call it once, without a
mask, with the lengths of the documents.

Legend: B batch, S patches, N heads, D head size.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import paddle

import paddle_fused
from llm_npu.surgery.fusable_layers import FusableLayer
from llm_npu.surgery.registry import NotFused, Replacement
from paddle_fused import contracts, masks


def layer(layer, fusable: FusableLayer) -> Replacement | NotFused:
    """An attention layer that gets the ends of the documents as ``cu_seqlens``."""
    if reason := fusable.overridden(layer):
        return NotFused(reason)
    return Replacement(calls={"ALL_ATTENTION_FUNCTIONS": ForEveryName()}, arguments=with_lengths)


class ForEveryName:
    """Replaces ``ALL_ATTENTION_FUNCTIONS``."""

    def __getitem__(self, name):
        return attention


def with_lengths(layer, arguments: dict) -> dict:
    """The arguments of a forward with the documents' lengths, and all patches as one document of upstream."""
    ends = arguments["cu_seqlens"].numpy()
    whole = paddle.to_tensor(ends[[0, -1]], place=paddle.CPUPlace())
    lengths = tuple(np.diff(ends).tolist())
    arguments.pop("attn_mask_startend_row_indices", None)
    return {**arguments, "cu_seqlens": whole, "lengths": lengths}


def attention(module, query, key, value, *, lengths, scaling=None, dropout=0.0, **_of_other_implementations):
    """query, key and value [1, N, S, D] -> [1, S, N * D], None; ``lengths``: of the documents, S in total."""
    parts = at_most(contracts.limit("attention.sequences"), lengths)
    sizes = [sum(part) for part in parts]
    tensors = [x.split(sizes, axis=2) if len(parts) > 1 else [x] for x in (query, key, value)]
    outs = [
        paddle_fused.flash_attention(*qkv, documents(part), layout="BNSD", dropout=dropout, scale=scaling)
        for part, *qkv in zip(parts, *tensors, strict=True)
    ]
    out = outs[0] if len(outs) == 1 else paddle.concat(outs, axis=2)
    return out.transpose([0, 2, 1, 3]).flatten(2), None


def at_most(limit: int, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """``lengths`` in parts of at most ``limit``, as equal as possible."""
    count = max(1, -(-len(lengths) // limit))
    return [tuple(part.tolist()) for part in np.array_split(np.array(lengths), count)]


@functools.lru_cache(maxsize=64)
def documents(lengths: tuple[int, ...]) -> masks.Mask:
    """One mask for all layers with these documents: it keeps its lengths on the device."""
    return masks.documents([list(lengths)], causal=False)


def example(layer, batch) -> list | None:
    """The call of a layer whose documents are images; None if their sizes are unknown."""
    if not batch.patches:
        return None
    query = batch.empty(1, layer.num_heads, sum(batch.patches), layer.head_dim)
    return [lambda: attention(layer, query, query, query, lengths=tuple(batch.patches))]
