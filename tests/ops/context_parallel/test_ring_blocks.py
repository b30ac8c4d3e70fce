"""The zigzag order, and the blocks of ring attention: together they are the scores that the mask leaves."""

import numpy as np
import paddle
import pytest

from paddle_fused import masks
from paddle_fused.context_parallel import zigzag
from paddle_fused.context_parallel.blocks import Sizes, blocks, halves, pattern_of

MASKS = {
    "full": None,
    "causal": masks.causal(),
    "one document": masks.documents([24]),
    "documents": masks.documents([1, 10, 3, 0, 10]),
    "chunks": masks.documents([4] * 6),
    "not causal": masks.documents([1, 10, 3, 10], causal=False),
    "both": masks.causal() & masks.documents([5, 19], causal=False),
    "rows": masks.documents([[7, 17], [24]]),
}


def positions(length: int, rank: int, ranks: int) -> np.ndarray:
    """The positions in the whole sequence of the tokens that a rank holds."""
    chunks = np.arange(length).reshape(2 * ranks, -1)
    return np.concatenate([chunks[rank], chunks[-1 - rank]])


@pytest.mark.parametrize("longest", [None, 3])
@pytest.mark.parametrize("has_documents", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MASKS)
def test_blocks_cover_what_the_mask_leaves(name, ranks, has_documents, longest):
    batch, length, mask = 2, 24, MASKS[name]
    hidden = np.zeros((length, length), bool) if mask is None else mask.to_dense(length)
    hidden = np.broadcast_to(hidden.reshape(-1, length, length), (batch, length, length))
    sizes = Sizes(batch, length // ranks, ranks, longest, has_documents)
    pattern = pattern_of(mask, length, batch)
    for rank in range(ranks):
        own = positions(length, rank, ranks)
        for source in range(ranks):
            keys = positions(length, source, ranks)
            own_blocks = blocks(pattern, sizes, rank, source)
            variants = [own_blocks]
            if source == rank:
                variants.append(tuple(block for half in halves(pattern, sizes, rank) for block in half))
            for variant in variants:
                seen = np.zeros((batch, len(own), len(keys)), int)
                covered = np.zeros((batch, len(own)), bool)
                for block in variant:
                    part = seen[block.rows, block.queries, block.keys]
                    covered[block.rows, block.queries] = True
                    size = max(block.documents or part.shape[1:])
                    assert longest is None or not block.causal or size <= longest
                    part += visible(part.shape, block)
                assert (seen == ~hidden[:, own][:, :, keys]).all(), (rank, source)
                assert source != rank or covered.all()


def visible(shape, block) -> np.ndarray:
    """The scores of a block, counted in its own tokens."""
    batch, queries, keys = shape
    rows = np.tril(np.ones((queries, keys), int)) if block.causal else np.ones((queries, keys), int)
    rows = np.broadcast_to(rows, shape)
    if block.documents:
        document = np.repeat(np.arange(len(block.documents)), block.documents).reshape(batch, queries)
        rows = rows * (document[:, :, None] == document[:, None])
    return rows


@pytest.mark.parametrize("mask", [masks.band(3, 0), masks.prefix(2), masks.dense(np.zeros((24, 24), bool))])
def test_masks_that_the_ring_does_not_take(mask):
    assert pattern_of(mask, 24, 2) is None


def test_documents_of_another_length_are_refused():
    with pytest.raises(ValueError, match="20"):
        pattern_of(masks.documents([10, 10]), 24, 2)
    with pytest.raises(ValueError, match="batch of 3"):
        pattern_of(masks.documents([[24]] * 3), 24, 2)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_zigzag_splits_and_merges(ranks):
    whole = np.arange(2 * 12 * 3).reshape(2, 12, 3)
    for make in (np.asarray, paddle.to_tensor):
        parts = [zigzag.split(make(whole), rank, ranks) for rank in range(ranks)]
        assert (np.asarray(zigzag.merge(parts)) == whole).all()
        for rank, part in enumerate(parts):
            assert (np.asarray(part) == whole[:, positions(12, rank, ranks)]).all()


def test_zigzag_refuses_a_sequence_without_equal_chunks():
    with pytest.raises(ValueError, match="multiple of 4"):
        zigzag.split(np.zeros((1, 10)), 0, 2)
