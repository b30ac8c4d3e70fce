"""Arguments of a wrong type: a ValueError that says what came, what is accepted and what to do."""

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


WHOLE = r"; accepted: an integer\. Pass an int\."
WHOLE_LIST = r"; accepted: a list of integers\. Pass a list of ints\."
NUMBER = r"; accepted: a number\. Pass an int or a float\."
CASES = {
    "dense of a list": (
        lambda: masks.dense([[True]]),
        r"got list; accepted: a bool tensor or numpy array\. .*paddle\.to_tensor",
    ),
    "mask and tensor": (
        lambda: masks.causal() & paddle.zeros([2, 2], "bool"),
        r"causal\(\) & Tensor; accepted: masks.*masks\.dense\(tensor\)",
    ),
    "mask and None": (lambda: masks.causal() & None, r"causal\(\) & NoneType; accepted: .*masks\.dense"),
    "band of a word": (lambda: masks.band("a", 1), "band: left is 'a'" + WHOLE),
    "band of a fraction": (lambda: masks.band(1.5, 1), "band: left is 1.5" + WHOLE),
    "band of a vector": (lambda: masks.band(1, zeros(3)), r"right is a tensor of shape \[3\]" + WHOLE),
    "prefix of a word": (lambda: masks.prefix("ab"), "prefix: an element of lengths is 'ab'" + WHOLE),
    "documents of a number": (lambda: masks.documents(5), "documents: seqlens is 5" + WHOLE_LIST),
    "documents of a word": (lambda: masks.documents("ab"), "documents: seqlens is 'ab'" + WHOLE_LIST),
    "documents of fractions": (
        lambda: masks.documents([2.5, 5.5]),
        "documents: an element of seqlens is 2.5" + WHOLE,
    ),
    "documents of lists and numbers": (
        lambda: masks.documents([[3], 5]),
        "documents: a row of seqlens is 5" + WHOLE_LIST,
    ),
    "query_start of a fraction": (
        lambda: masks.documents([3], query_start=1.0),
        "documents: query_start is 1.0" + WHOLE,
    ),
    "explain of three sizes": (
        lambda: masks.causal().explain([1, 8, 2]),
        r"query has shape \[1, 8, 2\] in layout BSND; accepted: ",
    ),
    "explain of a key's three sizes": (
        lambda: masks.causal().explain([1, 8, 2, 4], [1, 8, 2]),
        r"key has shape \[1, 8, 2\] in layout BSND; accepted: ",
    ),
    "explain of a number": (lambda: masks.causal().explain(8), "explain: shape is 8" + WHOLE_LIST),
    "dropout": (lambda: attention(dropout="0.1"), "flash_attention: dropout is '0.1'" + NUMBER),
    "scale": (lambda: attention(scale="1"), "flash_attention: scale is '1'" + NUMBER),
    "num_heads": (lambda: attention("BSH", num_heads="2"), "flash_attention: num_heads is '2'" + WHOLE),
    "num_heads of a fraction": (lambda: attention("BSH", num_heads=2.0), "num_heads is 2.0" + WHOLE),
    "cu_seqlens_q of fractions": (
        lambda: tokens([0.0, 8.0]),
        "flash_attention: an element of cu_seqlens_q is 0.0" + WHOLE,
    ),
    "cu_seqlens_q of floats in a tensor": (
        lambda: tokens(paddle.to_tensor([0.0, 8.0])),
        "flash_attention: an element of cu_seqlens_q is 0.0" + WHOLE,
    ),
    "cu_seqlens_q of a number": (lambda: tokens(8), "cu_seqlens_q is 8" + WHOLE_LIST),
    "sparse_mode": (lambda: npu_attention(sparse_mode="3"), "sparse_mode is '3' in layout BSND; accepted: "),
    "restore_shape": (
        lambda: restored([4, 4]),
        r"restore_shape is \[4, 4\]; accepted: None, or the result's shape \[3, 4\]\. .*padded_mode",
    ),
    "restore_shape of a number": (lambda: restored(3), "restore_shape is 3" + WHOLE_LIST),
    "rms_norm": (
        lambda: paddle_fused.rms_norm(zeros(2, 4), zeros(4), "1e-6"),
        "rms_norm: epsilon is '1e-6'" + NUMBER,
    ),
    "add_rms_norm": (
        lambda: paddle_fused.add_rms_norm(zeros(2, 4), zeros(2, 4), zeros(4), None),
        "add_rms_norm: epsilon is None" + NUMBER,
    ),
    "dropout_p of a word": (
        lambda: layer_norm("0.1"),
        "dropout_add_layer_norm: dropout_p is '0.1'" + NUMBER,
    ),
    "dropout_p None": (lambda: layer_norm(None), "dropout_add_layer_norm: dropout_p is None" + NUMBER),
    "epsilon of a norm": (lambda: layer_norm(0.0, "0"), "epsilon is '0'" + NUMBER),
    "npu_swiglu": (lambda: compat.npu_swiglu(zeros(2, 8), "a"), "npu_swiglu: dim is 'a'" + WHOLE),
    "npu_geglu": (
        lambda: compat.npu_geglu(zeros(2, 8), activate_left="no"),
        r"npu_geglu: activate_left is 'no'; accepted: True or False\. Pass a bool\.",
    ),
}


@pytest.mark.parametrize("call, message", CASES.values(), ids=CASES)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_band_beside_the_diagonal():
    with pytest.raises(ValueError, match=r"right is -20; accepted: .*sparse_mode 4.*compat"):
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
