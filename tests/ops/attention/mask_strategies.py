"""Hypothesis strategies for masks and their shapes; what a plan hides, by its bands and by CANN's mode."""

from itertools import pairwise

import numpy as np
from attention_operator import enumerated
from hypothesis import strategies as st

from paddle_fused import masks
from paddle_fused.masks import hidden_matrix, hidden_sequences, mode_of

LENGTHS = st.integers(1, 12)
ALIGN = st.sampled_from(["bottom_right", "top_left"])
BOUND = st.one_of(st.none(), st.integers(0, 12))
BANDS = st.builds(masks.band, BOUND, BOUND, ALIGN)


def split(total, cuts):
    """Lengths that add up to ``total``, cut at ``cuts``; some may be 0."""
    return [b - a for a, b in pairwise([0, *sorted(min(cut, total) for cut in cuts), total])]


@st.composite
def documents(draw, query_len, key_len, batch):
    """documents(...) for these shapes; with more keys than queries the queries may be a part of the row."""
    cuts = st.lists(st.integers(0, key_len), max_size=3)
    part = query_len < key_len and draw(st.booleans())
    whole = key_len if part or draw(st.booleans()) else query_len
    by_row = draw(st.booleans())
    rows = [split(key_len, draw(cuts)) for _ in range(batch if by_row else 1)]
    arguments = {"causal": draw(st.booleans()), "align": draw(ALIGN)}
    if part or query_len == key_len:
        assert whole == key_len
        if part:
            arguments["query_start"] = draw(st.integers(0, key_len - query_len))
        return masks.documents(rows if by_row else rows[0], **arguments)
    query_rows = [
        split(query_len, draw(st.lists(st.integers(0, query_len), min_size=len(r) - 1, max_size=len(r) - 1)))
        for r in rows
    ]
    arguments["key_seqlens"] = rows if by_row else rows[0]
    return masks.documents(query_rows if by_row else query_rows[0], **arguments)


@st.composite
def batch_masks(draw):
    """(mask, Shapes) in layout BSND: one to three parts."""
    batch, query_len, key_len = draw(st.integers(1, 3)), draw(LENGTHS), draw(LENGTHS)
    seed = draw(st.integers(0, 2**31))
    shape = (*draw(st.sampled_from([(), (1, 1), (batch, 1), (batch, 2)])), query_len, key_len)
    hidden = np.random.default_rng(seed).random(shape) < 0.3
    prefix = st.one_of(
        st.integers(0, key_len), st.lists(st.integers(0, key_len), min_size=batch, max_size=batch)
    )
    part = st.one_of(
        BANDS,
        BANDS,
        st.builds(masks.prefix, prefix),
        documents(query_len, key_len, batch),
        st.just(masks.dense(hidden, invalid_rows=draw(st.booleans()))),
    )
    mask = draw(part)
    for other in draw(st.lists(part, max_size=2)):
        mask = mask & other
    return mask, masks.shapes_of("BSND", (batch, query_len, 2, 4), (batch, key_len, 2, 4))


@st.composite
def packed_masks(draw):
    """(mask, Shapes) in layout TND with lengths of 0 and 1 among others."""
    count = draw(st.integers(1, 4))
    query_lens = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    equal = draw(st.booleans())
    key_lens = query_lens if equal else draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    mask = draw(BANDS)
    for other in draw(st.lists(BANDS, max_size=1)):
        mask = mask & other
    if draw(st.booleans()):
        longest = max(query_lens), max(key_lens)
        hidden = np.random.default_rng(draw(st.integers(0, 2**31))).random(longest) < 0.2
        mask = mask & masks.dense(hidden)
    ends = [np.cumsum([0, *lens]).tolist() for lens in (query_lens, key_lens)]
    return mask, masks.shapes_of("TND", (sum(query_lens), 2, 4), (sum(key_lens), 2, 4), *ends)


def block_diagonal(blocks, query_len, key_len):
    """A matrix with ``blocks`` (True = hidden) along the diagonal; everything else is hidden."""
    whole, row, column = np.ones((query_len, key_len), bool), 0, 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole


def hidden_by_mode(plan, shapes):
    """What CANN hides under ``plan``: bool [B, N, Sq, Skv] (broadcast), or [T, T] in layout TND."""
    mode = mode_of(plan)
    tokens = {"pre_tokens": mode.pre_tokens, "next_tokens": mode.next_tokens}
    if plan.packed:
        full = None if plan.full is None else plan.full.to_dense(*plan.full_shape)
        lens = plan.query_lens, plan.key_lens
        return _of_sequences(plan, shapes, hidden_sequences(mode.sparse_mode, *lens, mask=full, **tokens))
    size = shapes.query_len, shapes.key_len

    def of_batch(b, mask):
        prefix = None if plan.prefix is None else plan.prefix[b]
        return hidden_matrix(mode.sparse_mode, *size, prefix=prefix, mask=mask, **tokens)

    return _of_batch(plan, shapes, of_batch)


def hidden_by_bands(plan, shapes):
    """What the host kernels hide, in the same form."""

    def block(index, q, k, full):
        band = plan.bands[index if len(plan.bands) > 1 else 0]
        hidden = ~enumerated(q, k, *band, plan.align)
        return hidden if full is None else hidden | full[..., :q, :k]

    if plan.packed:
        full = None if plan.full is None else plan.full.to_dense(*plan.full_shape)
        blocks = [block(index, s.query_len, s.key_len, full) for index, s in enumerate(plan.sequences)]
        return _of_sequences(plan, shapes, blocks)
    return _of_batch(plan, shapes, lambda b, mask: block(b, shapes.query_len, shapes.key_len, mask))


def _of_sequences(plan, shapes, blocks):
    hidden = block_diagonal(blocks, sum(plan.query_lens), sum(plan.key_lens))
    if shapes.layout == "TND":
        return hidden
    rows, columns = shapes.query_len, shapes.key_len
    return np.stack(
        [
            hidden[b * rows : (b + 1) * rows, b * columns : (b + 1) * columns][None]
            for b in range(shapes.batch)
        ]
    )


def _of_batch(plan, shapes, of_batch):
    full = None if plan.full is None else plan.full.to_dense(*plan.full_shape)
    of_element = [
        full if full is None or full.ndim == 2 else full[b % len(full)] for b in range(shapes.batch)
    ]
    hidden = [of_batch(b, mask) for b, mask in enumerate(of_element)]
    if shapes.layout == "TND":
        return hidden[0]
    return np.stack([x.reshape(-1, shapes.query_len, shapes.key_len) for x in hidden])


def hidden_by_mask(mask, shapes):
    """What the reference hides, in the same form."""
    if shapes.layout != "TND":
        hidden = mask.to_dense(shapes.query_len, shapes.key_len)
        heads = hidden.shape[1] if hidden.ndim == 4 else 1
        return np.broadcast_to(hidden, (shapes.batch, heads, *hidden.shape[-2:]))
    structure = [part for part in mask.parts if not hasattr(part, "hidden")]
    tensors = [part.hidden for part in mask.parts if hasattr(part, "hidden")]
    blocks = []
    for q, k in zip(shapes.query_lens, shapes.key_lens, strict=True):
        block = np.zeros((q, k), bool)
        for part in structure:
            block |= part.to_dense(q, k)
        for hidden in tensors:
            block |= hidden[:q, :k]
        blocks.append(block)
    return block_diagonal(blocks, shapes.query_len, shapes.key_len)
