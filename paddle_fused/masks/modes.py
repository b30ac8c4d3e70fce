"""CANN's sparse modes: names, mask tensors, and their meaning as dense matrices.

Legend: Sq queries, Skv keys, i counts queries and j keys, d = Skv - Sq. Source: ops-transformer
docs/zh/context/sparse_mode_introduction.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import contracts

NAMES = {
    0: "defaultMask",
    1: "allMask",
    2: "leftUpCausal",
    3: "rightDownCausal",
    4: "band",
    5: "prefix",
    6: "prefix, compressed",
    7: "rightDownCausal, last sequence is a band",
    8: "leftUpCausal, first sequence is a band",
}
COMPRESSED = {
    m: "compressed_prefix" if m == 6 else "compressed" for m in (2, 3, 4, 6, 7, 8)
}  # SparsePlan.mask
UNBOUNDED = 2**31 - 1  # pre_tokens and next_tokens without a bound; CANN clips them to an int32


def compressed_mask() -> np.ndarray:
    """The mask of modes 2, 3, 4, 7 and 8: bool [2048, 2048], True above the diagonal."""
    size = contracts.limit("attention.compressed_mask")
    return np.triu(np.ones((size, size), bool), 1)


def compressed_prefix_mask() -> np.ndarray:
    """The mask of mode 6: ``compressed_mask``, then 1024 rows whose right half is True."""
    triangle = compressed_mask()
    size = len(triangle)
    rows = contracts.limit("attention.compressed_prefix_mask_rows") - size
    return np.concatenate([triangle, np.broadcast_to(np.arange(size) >= size // 2, (rows, size))])


def hidden_matrix(
    sparse_mode: int,
    query_len: int,
    key_len: int,
    *,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    prefix: int | None = None,
    mask: np.ndarray | None = None,
    is_band: bool = False,
) -> np.ndarray:
    """What a mode hides (True = hidden): bool [Sq, Skv], or the shape of ``mask`` in modes 0, 1 and 5.

    ``prefix``: the length of this batch element. ``is_band``: in mode 7 or 8, this is the sequence with a
    band. Mode 0 without a mask hides nothing: CANN then ignores pre_tokens and next_tokens.
    """
    i, j = np.arange(query_len)[:, None], np.arange(key_len)[None, :]
    d = key_len - query_len
    if sparse_mode == 0 and mask is None:
        return np.zeros((query_len, key_len), bool)
    if sparse_mode == 0:
        return (j < i - pre_tokens) | (j > i + next_tokens) | mask
    if sparse_mode == 1:
        return mask
    if sparse_mode == 2 or (sparse_mode == 8 and not is_band):
        return j > i
    if sparse_mode == 3 or (sparse_mode == 7 and not is_band):
        return j > i + d
    if sparse_mode in (4, 7, 8):
        return (j < i + d - pre_tokens) | (j > i + d + next_tokens)
    hidden = (j > i + d) & (j >= prefix)
    if sparse_mode == 5:
        return hidden | mask
    assert sparse_mode == 6, sparse_mode
    return hidden


def hidden_sequences(
    sparse_mode: int,
    query_lens: Sequence[int],
    key_lens: Sequence[int],
    *,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    prefix: Sequence[int] | None = None,
    mask: np.ndarray | None = None,
) -> list[np.ndarray]:
    """`hidden_matrix` of each sequence in layout TND; all sequences share ``mask``."""
    with_queries = [s for s, length in enumerate(query_lens) if length] or [0]
    band = {7: with_queries[-1], 8: with_queries[0]}.get(sparse_mode)
    return [
        hidden_matrix(
            sparse_mode,
            q,
            k,
            pre_tokens=pre_tokens,
            next_tokens=next_tokens,
            prefix=None if prefix is None else prefix[s],
            mask=None if mask is None else mask[:q, :k],
            is_band=s == band,
        )
        for s, (q, k) in enumerate(zip(query_lens, key_lens, strict=True))
    ]
