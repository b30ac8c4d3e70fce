"""A mask tensor that holds other values than in the call before, however they came there."""

import numpy as np
import paddle
import pytest
from precision import bits

from paddle_fused import flash_attention, flashmask_attention, masks
from paddle_fused.contracts import ContractError

S = 8
CAUSAL, TWO_DOCUMENTS = np.full(S, S, np.int32), np.repeat([4, S], 4).astype(np.int32)
CHANGES = {
    "assignment": lambda rows, new: rows.__setitem__(slice(None), new),
    "set_value": lambda rows, new: rows.set_value(new),
    "set_value of an array": lambda rows, new: rows.set_value(new.numpy()),
    "copy_": lambda rows, new: rows.copy_(new, True),
    "copy_ to a view": lambda rows, new: rows.reshape([-1]).copy_(new.reshape([-1]), True),
    "the tensor's memory": lambda rows, new: rows.get_tensor().set(
        new.numpy(), paddle.framework._current_expected_place()
    ),
    "other memory": lambda rows, new: new._share_buffer_to(rows),
}


def rows_of(values) -> paddle.Tensor:
    return paddle.to_tensor(np.ascontiguousarray(values.reshape(1, 1, S, 1)))


@pytest.fixture
def qkv(device):
    paddle.seed(0)
    return [paddle.randn([1, S, 2, 16]) for _ in range(3)]


@pytest.mark.parametrize("change", CHANGES)
def test_the_new_indices_are_used(change, qkv):
    expected = flashmask_attention(*qkv, rows_of(TWO_DOCUMENTS), causal=True)
    rows = rows_of(CAUSAL)
    assert bits(flashmask_attention(*qkv, rows, causal=True)) != bits(expected)
    CHANGES[change](rows, rows_of(TWO_DOCUMENTS))
    assert bits(flashmask_attention(*qkv, rows, causal=True)) == bits(expected)


def test_equal_indices_are_compiled_once(device):
    first = masks.row_indices(rows_of(TWO_DOCUMENTS))
    assert masks.row_indices(rows_of(TWO_DOCUMENTS)) is first
    assert masks.row_indices(rows_of(CAUSAL)) is not first


@pytest.mark.parametrize("change", ["assignment", "set_value", "copy_"])
def test_a_query_of_a_changed_mask_that_sees_no_key_is_refused(change, qkv):
    hidden = paddle.zeros([S, S], "bool")
    mask = masks.dense(hidden)
    flash_attention(*qkv, mask=mask)
    blind = paddle.zeros([S, S], "bool")
    blind[3] = True
    CHANGES[change](hidden, blind)
    with pytest.raises(ContractError, match="all keys of a query"):
        flash_attention(*qkv, mask=mask)
