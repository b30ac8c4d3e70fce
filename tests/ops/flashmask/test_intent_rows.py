"""Mask types as row indices, and in tiles on the plugin's operator."""

import numpy as np
import paddle
import pytest
from precision import values
from row_index_kinds import NAMES, cuts, dense, tensors

from paddle_fused import dispatch_log, flash_attention, masks, reset_dispatch_log, use_backend
from paddle_fused.masks.row_indices import rows_of
from paddle_fused.ops.attention import tiles
from paddle_fused.parity import ROUNDING


def draw(random, batch: int, query_len: int, key_len: int):
    """A band, a prefix or documents."""
    align = str(random.choice(["bottom_right", "top_left"]))
    kind = int(random.integers(3))
    if kind == 0:
        bounds = (None if random.random() < 0.3 else int(n) for n in random.integers(0, key_len, 2))
        return masks.band(*bounds, align)
    if kind == 1:
        return masks.prefix([int(n) for n in random.integers(0, key_len + 1, batch)])
    causal = bool(random.random() < 0.5)
    rows = [np.diff(cuts(random, key_len)).tolist() for _ in range(batch)]
    if query_len <= key_len:
        start = int(random.integers(0, key_len - query_len + 1))
        return masks.documents(rows, causal, query_start=start)
    return masks.documents([query_len], causal, key_seqlens=[key_len], align=align)


@pytest.mark.sampled
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_rows_hide_what_the_mask_hides(parts):
    random = np.random.default_rng(parts)
    for _ in range(200):
        batch, query_len, key_len = (int(n) for n in random.integers(1, (4, 20, 20)))
        mask = draw(random, batch, query_len, key_len)
        for _ in range(parts - 1):
            mask = mask & draw(random, batch, query_len, key_len)
        rows = rows_of(mask, query_len, key_len)
        np.testing.assert_array_equal(
            *np.broadcast_arrays(rows.to_dense(query_len, key_len), mask.to_dense(query_len, key_len)),
            err_msg=repr(mask),
        )


def test_tensors_have_no_rows():
    assert rows_of(masks.causal() & masks.dense(np.zeros((4, 4), bool)), 4, 4) is None


MASKS = {
    "window": masks.causal() & masks.band(6, None),
    "prefix": masks.prefix([4, 20]),
    "window in documents": masks.documents([[30, 10], [40]]) & masks.band(5, 2),
    "prefix in documents": masks.documents([15, 25]) & masks.prefix(18),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
def test_masks_larger_than_a_tile(name, layout, monkeypatch, on_npu):
    monkeypatch.setattr(tiles, "ROWS", 16)
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 16)
    mask, order = MASKS[name], [0, 2, 1, 3] if layout == "BNSD" else [0, 1, 2, 3]
    arrays = tensors(np.random.default_rng(0), np.zeros((2, 1, 40, 1)), 40)
    hidden = mask.to_dense(40)
    exact = dense(*arrays, np.broadcast_to(hidden, (2, 4, 40, 40)))
    results_of = {}
    for backend in ("ascend", "composed"):
        *inputs, out_grad = (paddle.to_tensor(x.astype(np.float32)).astype("bfloat16") for x in arrays)
        for tensor in inputs:
            tensor.stop_gradient = False
        reset_dispatch_log()
        with use_backend(backend, strict=True):
            out = flash_attention(*(x.transpose(order) for x in inputs), mask, layout=layout).transpose(order)
            results_of[backend] = [values(x) for x in (out, *paddle.grad(out, inputs, out_grad))]
        assert backend == "composed" or dispatch_log()[0].mode.endswith("3 tiles of queries")
    for what, actual, plain, right in zip(NAMES, *results_of.values(), exact, strict=True):
        error, baseline = (np.abs(x - right).max() for x in (actual, plain))
        assert error <= 2 * baseline + ROUNDING["bfloat16"] * np.abs(right).max(), (what, error, baseline)
