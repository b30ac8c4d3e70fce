"""The mode that each kind of row indices compiles to, and masks of row indices as values."""

import numpy as np
import pytest
from row_index_kinds import FORMS, draw

from paddle_fused import masks
from paddle_fused.masks import compile_mask, mode_of, shapes_of, within_bands
from paddle_fused.ops.flashmask_attention.cases import (
    bidirectional_documents,
    documents,
    hidden_by,
    prefix,
    shared_question,
    sliding_window,
)


def mask_of(*rows, causal=True):
    return masks.row_indices(np.asarray(rows, np.int32)[:, None], causal)


def plan_of(mask, query_len=None):
    batch, _, key_len, _ = mask.indices.shape
    query_len = key_len if query_len is None else query_len
    return compile_mask(mask, shapes_of("BSND", (batch, query_len, 2, 8), (batch, key_len, 2, 8)))


WINDOWS = [[min(end, j + 3)] for end, start in ((9, 0), (20, 9)) for j in range(start, end)]
# Indices, causal, sparse mode, packed, lengths of the sequences, queries that are zeroed.
KINDS = {
    "causal": ([documents(20)], True, 3, False, [20], []),
    "documents": ([documents(8, 12)], True, 3, True, [8, 12], []),
    "documents of each row": ([documents(8, 12), documents(20)], True, 3, True, [8, 12, 20], []),
    "tail of padding": ([documents(8, 7, padding=5)], True, 3, True, [8, 7, 5], [15, 16, 17, 18, 19]),
    "tail hidden from row 0 on": ([documents(8, 7) + [[0]] * 5], True, 3, True, [8, 7, 5], [*range(15, 20)]),
    "padding between": ([documents(8) + [[8]] * 3 + [[20]] * 9], True, 3, True, [8, 3, 9], [8, 9, 10]),
    "only padding": ([[[0]] * 20], True, 0, False, [20], [*range(20)]),
    "shared question": ([shared_question(8, 5, 3, 4)], True, 3, True, [13, 11, 12], []),
    "padded question": ([shared_question(8, 5, 4, padding=3)], True, 3, True, [13, 12, 3], [17, 18, 19]),
    "questions in a row": (
        [shared_question(3, 2, 2) + [[row + 7] for (row,) in shared_question(6, 4, 3)]],
        True, 3, True, [5, 5, 10, 9], [],
    ),
    "tree": ([[[20]] * 4 + [[10]] * 2 + [[8]] * 2 + [[10]] * 2 + [[20]] * 10], True, 3, True, [8, 8, 14], []),
    "window": ([sliding_window(20, 4)], True, 4, False, [20], []),
    "window in documents": ([WINDOWS], True, 4, True, [9, 11], []),
    "documents, both directions": ([bidirectional_documents(8, 12)], False, 0, True, [8, 12], []),
    "everything": ([[[20, 0]] * 20], False, 0, False, [20], []),
    "window, both directions": (
        [[[min(20, j + 4), max(0, j - 2)] for j in range(20)]],
        False, 4, False, [20], [],
    ),
    "causal without causal": ([[[20, j] for j in range(20)]], False, 3, False, [20], []),
    "prefix": ([prefix(20, 6), prefix(20, 9)], False, 6, False, [20], []),
    "documents in four columns": (
        [[[end, 20, 0, start] for end, start in bidirectional_documents(8, 12)]],
        False, 0, True, [8, 12], [],
    ),
    "a hole below the diagonal": ([[[12, 15]] * 3 + [[20, 20]] * 17], True, 0, False, [20], []),
    "any rows": ([np.random.default_rng(0).integers(0, 21, (20, 4))], False, 1, False, [20], None),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_mode_of_each_kind(kind):
    rows, causal, mode, packed, lengths, fully_masked = KINDS[kind]
    mask = mask_of(*rows, causal=causal)
    plan = plan_of(mask)
    assert (mode_of(plan).sparse_mode, plan.packed, list(plan.query_lens)) == (mode, packed, lengths)
    masked_rows = [] if plan.fully_masked is None else np.flatnonzero(plan.fully_masked).tolist()
    assert masked_rows == (
        np.flatnonzero(mask.fully_masked(20)).tolist() if fully_masked is None else fully_masked
    )
    assert plan_of(mask) is plan


def test_shared_tokens_are_copied_for_each_answer():
    plan = plan_of(mask_of(shared_question(3, 2, 2)))
    assert plan.tokens.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6]
    assert plan.own.tolist() == [0, 1, 2, 3, 4, 8, 9]
    assert "for each answer" in plan.why
    many = plan_of(mask_of(shared_question(10, *[1] * 20)))  # 30 tokens would become 220
    assert (*mode_of(many)[:2], many.tokens) == (0, "full", None)


def test_more_documents_than_cann_has_sequences(monkeypatch):
    """They stay row indices: nothing of all queries and keys is made to find that out."""
    mask = mask_of(documents(*[2] * 2049))
    monkeypatch.setattr(type(mask), "to_dense", None)
    plan = plan_of(mask)
    assert (plan.packed, plan.full.parts, plan.zero_rows) == (False, (mask,), False)
    without_packing = compile_mask(mask_of(documents(3, 5)), shapes_of("BSND", *[(1, 8, 2, 8)] * 2), False)
    assert (without_packing.packed, without_packing.kind) == (False, "full mask")


@pytest.mark.parametrize(("causal", "columns"), FORMS)
def test_the_reference_is_the_definition(causal, columns):
    random = np.random.default_rng(columns)
    for _ in range(100):
        indices, query_len = draw(random, causal, columns)
        mask, hidden = masks.row_indices(indices, causal), hidden_by(indices, causal, query_len)
        dense = mask.to_dense(query_len, indices.shape[2])
        np.testing.assert_array_equal(np.broadcast_to(dense, hidden.shape), hidden)
        np.testing.assert_array_equal(mask.fully_masked(query_len), hidden.all(-1))
        rows, visible = np.arange(query_len)[:, None], np.zeros(hidden.shape, bool)
        for first, end in mask.visible(query_len)[..., None, :]:
            visible |= (rows >= first) & (rows < end)
        np.testing.assert_array_equal(visible, ~hidden)


@pytest.mark.parametrize("lengths", [(20, 20), (12, 20), (20, 12)], ids=str)
@pytest.mark.parametrize("band", [masks.band(4, None), masks.causal(), masks.band(3, 0)], ids=repr)
def test_bands_around_row_indices_are_row_indices(lengths, band):
    query_len, key_len = lengths
    rows = masks.row_indices(np.random.default_rng(0).integers(0, 21, (2, 1, key_len, 1)).astype(np.int32))
    both = rows & band
    folded = within_bands(both, query_len, key_len)
    assert len(folded.parts) == 1
    np.testing.assert_array_equal(folded.to_dense(*lengths), both.to_dense(*lengths))
    assert within_bands(both, query_len, key_len) is folded  # one plan for all layers
    later = rows & masks.band(None, 0, "top_left")
    if key_len > query_len:
        assert within_bands(later, query_len, key_len) is later


def test_a_part_of_batch_and_heads():
    indices = np.random.default_rng(0).integers(0, 11, (4, 6, 10, 2)).astype(np.int32)
    whole, wanted = masks.row_indices(indices, False), (slice(1, 3), slice(2, 4))
    part = whole.of_part(*wanted)
    assert whole.of_part(*wanted) is part  # one plan for the layers of a process
    np.testing.assert_array_equal(part.to_dense(10), hidden_by(indices[1:3, 2:4], False, 10))
    assert repr(part) == "row_indices(<int32 [2, 2, 10, 2]>, causal=False)"


def test_explained():
    text = masks.row_indices(np.full((1, 1, 8, 1), 8, np.int32)).explain((1, 8, 2, 16))
    assert text.startswith("row_indices(<int32 [1, 1, 8, 1]>)\nsparse_mode 3 (rightDownCausal)")
