"""Mask types and their reference; every plan of the compiler is valid and equals the mask."""

import numpy as np
import pytest
from hypothesis import given, settings
from mask_strategies import batch_masks, hidden_by_bands, hidden_by_mask, hidden_by_mode, packed_masks

from paddle_fused import contracts, masks
from paddle_fused.masks import compile_mask, mode_of, shapes_of
from paddle_fused.masks.sequences import NO_BOUND

pytestmark = pytest.mark.sampled


def batch(query_len, key_len=None, size=1):
    return shapes_of("BSND", (size, query_len, 2, 8), (size, key_len or query_len, 2, 8))


def packed(query_lens, key_lens=None):
    ends = [np.cumsum([0, *lens]).tolist() for lens in (query_lens, key_lens or query_lens)]
    return shapes_of("TND", (ends[0][-1], 2, 8), (ends[1][-1], 2, 8), *ends)


# ---- the oracle, against the definition spelled out for one query and one key


def sees_causal(i, j, sq, skv):
    return j <= i + skv - sq


ORACLE = [
    (masks.causal(), sees_causal),
    (masks.causal("top_left"), lambda i, j, sq, skv: j <= i),
    (masks.band(2, 1), lambda i, j, sq, skv: i + skv - sq - 2 <= j <= i + skv - sq + 1),
    (masks.band(2, -1, align="top_left"), lambda i, j, sq, skv: i - 2 <= j),
    (masks.prefix(3), lambda i, j, sq, skv: j < 3 or sees_causal(i, j, sq, skv)),
    (masks.causal() & masks.band(1, None), lambda i, j, sq, skv: skv - sq + i - 1 <= j <= skv - sq + i),
]


@pytest.mark.parametrize("mask, sees", ORACLE, ids=lambda x: repr(x) if isinstance(x, masks.Mask) else "")
@pytest.mark.parametrize("sq, skv", [(5, 5), (3, 7), (7, 3), (1, 6), (6, 1)])
def test_oracle(mask, sees, sq, skv):
    expected = [[not sees(i, j, sq, skv) for j in range(skv)] for i in range(sq)]
    np.testing.assert_array_equal(mask.to_dense(sq, skv), expected)


def test_oracle_of_prefix_lengths():
    hidden = masks.prefix([0, 3]).to_dense(4)
    assert hidden.shape == (2, 1, 4, 4)
    np.testing.assert_array_equal(hidden[0, 0], masks.causal().to_dense(4))
    np.testing.assert_array_equal(hidden[1, 0], [[0, 0, 0, 1]] * 3 + [[0, 0, 0, 0]])


def test_oracle_of_documents():
    owner = np.array([0, 0, 2, 2, 2, 3])
    position = np.array([0, 1, 0, 1, 2, 0])
    other = owner[:, None] != owner
    np.testing.assert_array_equal(masks.documents([2, 0, 3, 1], causal=False).to_dense(6), other)
    hidden = other | (position > position[:, None])
    np.testing.assert_array_equal(masks.documents([2, 0, 3, 1]).to_dense(6), hidden)
    np.testing.assert_array_equal(masks.documents([2, 0, 3, 1], query_start=3).to_dense(2, 6), hidden[3:5])
    by_row = masks.documents([[6], [2, 4]]).to_dense(6)
    np.testing.assert_array_equal(by_row[0, 0], masks.causal().to_dense(6))
    np.testing.assert_array_equal(by_row[1, 0], masks.documents([2, 4]).to_dense(6))


def test_true_hides():
    hidden = np.array([[False, True], [False, False]])
    np.testing.assert_array_equal(masks.dense(hidden).to_dense(2), hidden)
    np.testing.assert_array_equal(masks.dense(hidden).to_dense(2), masks.causal().to_dense(2))


# ---- masks as values


def test_equal_masks_are_one_key():
    assert {masks.causal() & masks.band(3, 0), masks.causal() & masks.band(3, 0)} == {
        masks.causal() & masks.band(3, 0)
    }
    assert masks.causal() == masks.band(None, 0) == masks.band(-1, 0) != masks.causal("top_left")
    assert masks.documents([2, 3]) == masks.documents(np.array([2, 3])) != masks.documents([[2, 3]])
    shapes = batch(8)
    assert compile_mask(masks.band(3, 1), shapes) is compile_mask(masks.band(3, 1), shapes)


REPR = {
    "causal()": masks.causal(),
    "causal(align='top_left') & band(3, 1)": masks.causal("top_left") & masks.band(3, 1),
    "prefix(3)": masks.prefix(3),
    "prefix([3, 0])": masks.prefix([3, 0]),
    "documents([3, 1], causal=False)": masks.documents([3, 1], causal=False),
    "documents([[3], [1, 2]], query_start=1)": masks.documents([[3], [1, 2]], query_start=1),
    "documents([3], key_seqlens=[4], align='top_left')": masks.documents(
        [3], key_seqlens=[4], align="top_left"
    ),
}


@pytest.mark.parametrize("text", REPR)
def test_repr_can_be_typed_in(text):
    assert repr(REPR[text]) == text
    assert eval(text, vars(masks)) == REPR[text]


def test_repr_of_a_tensor_names_the_polarity():
    assert (
        repr(masks.dense(np.zeros((2, 3), bool), True))
        == "dense(<bool [2, 3], True = masked>, invalid_rows=True)"
    )


# ---- the compiler: right, and the mode that was meant


def assert_means(plan, mask, shapes):
    """Mode and bands hide what the mask hides."""
    for hidden in (hidden_by_mode(plan, shapes), hidden_by_bands(plan, shapes)):
        np.testing.assert_array_equal(*np.broadcast_arrays(hidden, hidden_by_mask(mask, shapes)))


def check_plan(mask, shapes):
    try:
        plan = compile_mask(mask, shapes)
    except (contracts.ContractError, ValueError):
        hides_a_row = hidden_by_mask(mask, shapes).all(-1).any()
        differs = (
            shapes.layout == "TND" and len(mask.parts) > 1
        )  # bands that no mask of the sequences can share
        assert hides_a_row or differs, "refused, but every query sees a key"
        return
    assert_means(plan, mask, shapes)
    if not plan.zero_rows and plan.full is None:
        assert not hidden_by_mask(mask, shapes).all(-1).any()


@settings(max_examples=80, deadline=None)
@given(batch_masks())
def test_plans_of_batches_mean_what_the_mask_says(case):
    check_plan(*case)


@settings(max_examples=80, deadline=None)
@given(packed_masks())
def test_plans_of_sequences_mean_what_the_mask_says(case):
    check_plan(*case)


ALL_SEE = masks.documents([2, 3, 1], causal=False)
HIDDEN = np.triu(np.ones((6, 6), bool), 1)
MODES = [
    (None, batch(6), 0, "none"),
    (masks.band(9, 9), batch(6), 0, "none"),
    (masks.causal(), batch(6), 3, "compressed"),
    (masks.causal(), batch(9, 6), 3, "compressed"),
    (masks.causal("top_left"), batch(6, 9), 2, "compressed"),
    (masks.band(2, 0), batch(6, 9), 4, "compressed"),
    (masks.band(2, 1, "top_left"), batch(6, 9), 4, "compressed"),
    (masks.prefix([2, 0]), batch(6, size=2), 6, "compressed_prefix"),
    (masks.prefix(2) & masks.dense(HIDDEN), batch(6, size=2), 5, "full"),
    (masks.dense(HIDDEN), batch(6), 1, "full"),
    (masks.dense(HIDDEN) & masks.causal(), batch(6), 0, "full"),
    (masks.documents([2, 3, 1]), batch(6), 3, "compressed"),
    (ALL_SEE, batch(6, size=2), 0, "none"),
    (masks.documents([2, 3, 1]) & masks.band(1, None), batch(6), 4, "compressed"),
    (masks.documents([2, 3, 1]), shapes_of("TND", (6, 1, 8), (6, 1, 8)), 3, "compressed"),
    (masks.causal(), packed([2, 0, 3]), 3, "compressed"),
    (masks.causal("top_left"), packed([2, 4, 3], [5, 2, 3]), 2, "compressed"),
    (masks.band(1, 0), packed([2, 1, 3], [5, 2, 3]), 4, "compressed"),
    (masks.band(1, 0, "top_left"), packed([2, 1, 3], [5, 2, 3]), 0, "full"),
    (masks.dense(np.zeros((3, 3), bool)), packed([2, 0, 3]), 1, "full"),
    # The queries are tokens 1 to 6: they begin late in the first document and end early in the last one.
    (masks.documents([3, 4], query_start=1), batch(5, 7), 7, "compressed"),
    (masks.documents([3, 4], query_start=0), batch(5, 7), 2, "compressed"),
    (masks.documents([3, 4], query_start=2), batch(5, 7), 3, "compressed"),
    # In the second document there are more queries than keys, so mode 7 cannot be.
    (
        masks.documents([3, 4, 4], key_seqlens=[3, 2, 4], align="top_left", query_start=1),
        batch(9, 9),
        8,
        "compressed",
    ),
]


@pytest.mark.parametrize("mask, shapes, sparse_mode, kind", MODES, ids=lambda x: str(x)[:60])
def test_cheapest_mode(mask, shapes, sparse_mode, kind):
    plan = compile_mask(mask, shapes)
    assert mode_of(plan)[:2] == (sparse_mode, kind)
    if mask is not None and not (shapes.layout == "TND" and shapes.query_lens is None):
        assert_means(plan, mask, shapes)


def test_compressed_masks():
    from paddle_fused.masks.modes import compressed_mask, compressed_prefix_mask

    triangle, prefix = compressed_mask(), compressed_prefix_mask()
    assert triangle.shape == (2048, 2048) and prefix.shape == (3072, 2048)
    np.testing.assert_array_equal(triangle, ~np.tri(2048, dtype=bool))
    np.testing.assert_array_equal(prefix[:2048], triangle)
    assert not prefix[2048:, :1024].any() and prefix[2048:, 1024:].all()


# ---- explain


def test_explain_says_mode_share_and_bytes():
    text = (masks.causal() & masks.band(127, None)).explain((1, 1024, 8, 64))
    # 8 x 8 blocks: the diagonal, and the one before it in all rows but the first.
    for words in (
        "sparse_mode 4",
        "pre_tokens 127, next_tokens 0",
        "computes 23.4%",
        "4,194,304 bytes",
        "1,048,576",
    ):
        assert words in text
    text = masks.documents([512, 512]).explain((2, 1024, 8, 64))
    assert "layout TND" in text and "computes 31.2%" in text  # 4 triangles of 10 blocks, of 2 x 64
    assert "computes 100.0%" in masks.dense(np.zeros((256, 256), bool)).explain((1, 256, 8, 64))


# ---- what is refused

T = "TND"
REFUSED = {
    "mode 3 in TND": (
        "attention.mode3_varlen",
        561002,
        lambda: compile_mask(masks.causal(), packed([3, 2], [2, 2])),
    ),
    "empty band": ("attention.band_bottom_right", 561002, lambda: masks.band(-4, 2)),
    "band that misses": (
        "attention.band_bottom_right",
        561002,
        lambda: compile_mask(masks.causal("top_left") & masks.band(2, None), batch(4, 9)),
    ),
    "fully masked rows": (
        "attention.hidden_rows_of_intents",
        None,
        lambda: compile_mask(
            masks.prefix(3) & masks.documents([2, 2], key_seqlens=[0, 4], causal=False), batch(4)
        ),
    ),
    "fully masked rows in TND": (
        "attention.hidden_rows_of_intents",
        None,
        lambda: compile_mask(masks.band(1, 1, "top_left"), packed([5], [2])),
    ),
    "prefix in TND": ("attention.prefix_varlen", 561002, lambda: compile_mask(masks.prefix(1), packed([3]))),
    "prefix beyond the keys": (
        "attention.prefix_range",
        561002,
        lambda: compile_mask(masks.prefix(7), batch(6)),
    ),
    "queries without keys": ("attention.no_keys", 561002, lambda: compile_mask(None, packed([3, 2], [3, 0]))),
    "lengths that go down": (
        "attention.lengths_order_from_0",
        None,
        lambda: shapes_of(T, [3], [3], [0, 4, 3], [0, 4, 3]),
    ),
    "lengths of other tokens": (
        "attention.lengths_total",
        561002,
        lambda: shapes_of(T, [4], [4], [0, 3], [0, 3]),
    ),
    "unequal counts": ("attention.lengths_count", 561002, lambda: shapes_of(T, [4], [4], [0, 4], [0, 1, 4])),
    "one list": ("attention.lengths_from_0", None, lambda: shapes_of(T, [4], [4], [0, 4])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_a_rule(name):
    key, error, call = REFUSED[name]
    with pytest.raises(contracts.ContractError, match="flash_attention: ") as raised:
        call()
    assert (raised.value.rule.key, raised.value.error) == (key, error)


WRONG = {
    "align is 'left'": lambda: masks.causal("left"),
    "left is -3; accepted": lambda: masks.band(-3, 5),
    r"lengths is \[3, -1\]": lambda: masks.prefix([3, -1]),
    r"seqlens is \[\]": lambda: masks.documents([]),
    "query_start is -1": lambda: masks.documents([3], query_start=-1),
    r"key_seqlens \[7\]": lambda: masks.documents([3, 4], key_seqlens=[7]),
    "accepted: bool": lambda: masks.dense(np.zeros((3, 3))),
    r"got the shape \[3\]": lambda: masks.dense(np.zeros(3, bool)),
    r"batch sizes are \[2, 3\]": lambda: masks.prefix([1, 2]) & masks.prefix([1, 2, 3]),
    "batch of 2; .*batch of 3": lambda: compile_mask(masks.prefix([1, 2]), batch(4, size=3)),
    "5 queries and 5 keys, and .*6 queries and 6 keys": lambda: compile_mask(
        masks.documents([2, 3]), batch(6)
    ),
    "start at 0": lambda: shapes_of(T, [4], [4], [4], [4]),
    "cu_seqlens_q and cu_seqlens_k .*TND": lambda: shapes_of(
        "BSND", [1, 4, 1, 1], [1, 4, 1, 1], [0, 4], [0, 4]
    ),
    "documents.* Omit cu_seqlens_q": lambda: compile_mask(masks.documents([2, 2]), packed([4])),
    "one mask tensor .* bands": lambda: compile_mask(
        masks.causal() & masks.dense(np.zeros((3, 5), bool)), packed([3, 2], [5, 2])
    ),
    "static graph.*InputSpec": lambda: compile_mask(
        masks.prefix(3), shapes_of("BSND", [-1, -1, 1, 1], [-1, -1, 1, 1])
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_masks(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


@pytest.mark.parametrize(
    "mask, sparse_mode, band, align",
    [
        (None, 0, (-NO_BOUND, NO_BOUND, 0), "top_left"),
        (masks.causal(), 3, (-NO_BOUND, 0, 0), "bottom_right"),
        (masks.causal("top_left"), 2, (-NO_BOUND, 0, 0), "top_left"),
        (masks.band(5, 1), 4, (-5, 1, 0), "bottom_right"),
        (masks.dense(HIDDEN), 1, (-NO_BOUND, NO_BOUND, 0), "top_left"),
    ],
)
def test_masks_that_need_no_lengths(mask, sparse_mode, band, align):
    plan = compile_mask(mask, shapes_of("BSND", [-1, -1, 2, 8], [-1, -1, 2, 8]))
    assert (plan.bands, plan.align, mode_of(plan).sparse_mode) == ((band,), align, sparse_mode)
