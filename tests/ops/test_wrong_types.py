"""Arguments of a wrong type: a ValueError that says what came, what is accepted and what to do."""

import re

import numpy as np
import paddle
import pytest

import paddle_fused
from paddle_fused import compat, masks


def zeros(*shape):
    return paddle.zeros(shape)


def attention(layout="BSND", **arguments):
    shape = {"BSND": (1, 8, 2, 4), "BSH": (1, 8, 8), "TND": (8, 2, 4)}[layout]
    return paddle_fused.flash_attention(*[zeros(*shape)] * 3, layout=layout, **arguments)


def layer_norm(dropout_p, epsilon=1e-6):
    return paddle_fused.dropout_add_layer_norm(zeros(2, 4), None, zeros(4), None, dropout_p, epsilon)


def tokens(ends):
    return attention("TND", cu_seqlens_q=ends, cu_seqlens_k=ends)


def npu_attention(**arguments):
    return compat.npu_fusion_attention(*[zeros(1, 8, 2, 4)] * 3, 2, "BSND", **arguments)


def restored(shape):
    rows, indices = zeros(3, 4), paddle.arange(3, dtype="int32")
    return compat.npu_moe_token_unpermute(rows, indices, restore_shape=shape)


INT, INTS, NUMBER = "int", "ints", "float"
# The call, and what its message names: the argument, its value, and what to pass instead.
CASES = {
    "dense of a list": (lambda: masks.dense([[True]]), ("list", "paddle.to_tensor")),
    "mask and tensor": (
        lambda: masks.causal() & paddle.zeros([2, 2], "bool"),
        ("causal() & Tensor", "masks.dense(tensor)"),
    ),
    "mask and None": (lambda: masks.causal() & None, ("causal() & NoneType", "masks.dense")),
    "band of a word": (lambda: masks.band("a", 1), ("band", "left", "'a'", INT)),
    "band of a fraction": (lambda: masks.band(1.5, 1), ("band", "left", "1.5", INT)),
    "band of a vector": (lambda: masks.band(1, zeros(3)), ("right", "[3]", INT)),
    "prefix of a word": (lambda: masks.prefix("ab"), ("prefix", "lengths", "'ab'", INT)),
    "documents of a number": (lambda: masks.documents(5), ("documents", "seqlens", "5", INTS)),
    "documents of a word": (lambda: masks.documents("ab"), ("documents", "seqlens", "'ab'", INTS)),
    "documents of fractions": (lambda: masks.documents([2.5, 5.5]), ("documents", "seqlens", "2.5", INT)),
    "documents of lists and numbers": (
        lambda: masks.documents([[3], 5]),
        ("documents", "seqlens", "5", INTS),
    ),
    "query_start of a fraction": (
        lambda: masks.documents([3], query_start=1.0),
        ("documents", "query_start", "1.0", INT),
    ),
    "explain of three sizes": (lambda: masks.causal().explain([1, 8, 2]), ("query", "[1, 8, 2]", "BSND")),
    "explain of a key's three sizes": (
        lambda: masks.causal().explain([1, 8, 2, 4], [1, 8, 2]),
        ("key", "[1, 8, 2]", "BSND"),
    ),
    "explain of a number": (lambda: masks.causal().explain(8), ("explain", "shape", "8", INTS)),
    "dropout": (lambda: attention(dropout="0.1"), ("flash_attention", "dropout", "'0.1'", NUMBER)),
    "scale": (lambda: attention(scale="1"), ("flash_attention", "scale", "'1'", NUMBER)),
    "num_heads": (lambda: attention("BSH", num_heads="2"), ("flash_attention", "num_heads", "'2'", INT)),
    "num_heads of a fraction": (lambda: attention("BSH", num_heads=2.0), ("num_heads", "2.0", INT)),
    "cu_seqlens_q of fractions": (lambda: tokens([0.0, 8.0]), ("cu_seqlens_q", "0.0", INT)),
    "cu_seqlens_q of floats in a tensor": (
        lambda: tokens(paddle.to_tensor([0.0, 8.0])),
        ("cu_seqlens_q", "0.0", INT),
    ),
    "cu_seqlens_q of a number": (lambda: tokens(8), ("cu_seqlens_q", "8", INTS)),
    "sparse_mode": (lambda: npu_attention(sparse_mode="3"), ("sparse_mode", "'3'", "BSND")),
    "restore_shape": (lambda: restored([4, 4]), ("restore_shape", "[4, 4]", "[3, 4]", "None")),
    "restore_shape of a number": (lambda: restored(3), ("restore_shape", "3", INTS)),
    "rms_norm": (
        lambda: paddle_fused.rms_norm(zeros(2, 4), zeros(4), "1e-6"),
        ("rms_norm", "epsilon", "'1e-6'", NUMBER),
    ),
    "add_rms_norm": (
        lambda: paddle_fused.add_rms_norm(zeros(2, 4), zeros(2, 4), zeros(4), None),
        ("add_rms_norm", "epsilon", "None", NUMBER),
    ),
    "dropout_p of a word": (
        lambda: layer_norm("0.1"),
        ("dropout_add_layer_norm", "dropout_p", "'0.1'", NUMBER),
    ),
    "dropout_p None": (lambda: layer_norm(None), ("dropout_add_layer_norm", "dropout_p", "None", NUMBER)),
    "epsilon of a norm": (lambda: layer_norm(0.0, "0"), ("epsilon", "'0'", NUMBER)),
    "npu_swiglu": (lambda: compat.npu_swiglu(zeros(2, 8), "a"), ("npu_swiglu", "dim", "'a'", INT)),
    "npu_geglu": (
        lambda: compat.npu_geglu(zeros(2, 8), activate_left="no"),
        ("npu_geglu", "activate_left", "'no'", "bool"),
    ),
}


@pytest.mark.parametrize("call, keys", CASES.values(), ids=CASES)
def test_refused(call, keys):
    with pytest.raises(ValueError) as caught:
        call()
    for key in keys:  # as a whole word
        assert re.search(rf"(?<!\w){re.escape(key)}(?!\w)", str(caught.value)), (key, str(caught.value))


def test_band_beside_the_diagonal():
    with pytest.raises(ValueError, match=r"right.*-20.*sparse_mode 4.*compat"):
        masks.band(20, -20)


def test_numbers_of_other_libraries_are_numbers():
    assert masks.band(np.int32(3), paddle.to_tensor(1)) == masks.band(3, 1)
    assert masks.prefix(np.int64(2)) == masks.prefix(paddle.to_tensor(2)) == masks.prefix(2)
    assert masks.prefix(paddle.to_tensor([2, 3])) == masks.prefix(np.array([2, 3])) == masks.prefix([2, 3])
    x, weight = paddle.rand([2, 4]), paddle.ones([4])
    expected = paddle_fused.rms_norm(x, weight, 0.5)
    for epsilon in (np.float32(0.5), np.array(0.5), paddle.to_tensor(0.5)):
        assert bool((paddle_fused.rms_norm(x, weight, epsilon) == expected).all())


def test_restore_shape_of_the_result():
    assert restored([3, 4]).shape == restored(None).shape == [3, 4]


def test_explain_takes_tensors():
    mask = masks.causal()
    assert mask.explain(zeros(1, 8, 2, 4), zeros(1, 9, 2, 4)) == mask.explain([1, 8, 2, 4], [1, 9, 2, 4])


def test_dense_keeps_its_values():
    hidden = np.zeros((2, 2), bool)
    mask = masks.dense(hidden)
    hidden[:] = True
    assert not mask.to_dense(2).any()
