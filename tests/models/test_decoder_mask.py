"""Row indices as a decoder gets them, in every form: the mask that its layers share."""

import numpy as np
import paddle
import pytest

from llm_npu.core.errors import UserError
from llm_npu.surgery.decoder_mask import mask_of
from paddle_fused import flash_attention, masks

S = 10
DOCUMENTS = [4] * 4 + [8] * 4
CAUSAL = np.triu(np.ones((S, S), bool), 1)


def hidden_by(rows, **options):
    rows = paddle.to_tensor(np.asarray(rows)[None, None])
    return mask_of(None, rows, S, S, **options).to_dense(S)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("tail", [[8, 9], [0, 0], [8, 8]], ids=str)
@pytest.mark.parametrize("columns", [0, 1])
def test_packed_documents_with_padding(dtype, tail, columns):
    """PaddleFormers hides padding from itself on, ERNIE from row 0; PaddleNLP has no last dimension."""
    rows = np.array(DOCUMENTS + tail, dtype)
    hidden = hidden_by(rows[:, None] if columns else rows)
    expected = masks.documents([4, 4, 2]).to_dense(S)
    expected[8:] = True
    np.testing.assert_array_equal(hidden, expected)


def test_two_columns_follow_causal():
    pairs = np.array([[6, 8]] * 3 + [[S, 1]] * 7, np.int32)
    i = np.arange(S)[:, None]
    below = (i >= pairs[:, 0]) & (i < pairs[:, 1])
    np.testing.assert_array_equal(hidden_by(pairs), below | CAUSAL)
    both = (i >= pairs[:, 0]) | (i < pairs[:, 1])
    np.testing.assert_array_equal(hidden_by(pairs, causal=False), both)


def test_four_columns_are_not_causal():
    ranges = np.array([[5, 7, 1, 2]] * S, np.int32)
    hidden = np.isin(np.arange(S), [1, 5, 6])[:, None].repeat(S, 1)
    np.testing.assert_array_equal(hidden_by(ranges), hidden)


def test_padding_gives_zeros(device):
    rows = paddle.to_tensor([[[*DOCUMENTS, 8, 9]]], dtype="int32")
    x = paddle.randn([1, S, 2, 8])
    x.stop_gradient = False
    out = flash_attention(x, x, x, mask_of(None, rows, S, S))
    (gradient,) = paddle.grad(out, [x])
    alone = flash_attention(x[:, 4:8], x[:, 4:8], x[:, 4:8], masks.causal())
    assert not out[:, 8:].any() and not gradient[:, 8:].any()
    np.testing.assert_allclose(out[:, 4:8].numpy(), alone.numpy(), atol=1e-6)


def test_layers_share_the_mask():
    rows = paddle.to_tensor([[[*DOCUMENTS, 8, 9]]], dtype="int32")
    assert mask_of(None, rows, S, S) is mask_of(None, rows, S, S)


def test_a_captured_program_knows_no_rows():
    with pytest.raises(UserError, match="attn_mask_startend_row_indices"):
        mask_of(None, object(), S, S)
