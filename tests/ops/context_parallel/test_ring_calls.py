"""Calls of ring attention on one rank, and those that are refused before anything is sent."""

import numpy as np
import paddle
import pytest
from block_values import attention, inputs, wide
from paddle.distributed.communication.group import Group
from paddle.distributed.fleet.utils import recompute

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel.gathered import gathered_attention
from paddle_fused.context_parallel.ring import ring_attention

ALONE, PAIR = Group(0, 91, [0]), Group(0, 92, [0, 1])


def tensors(length: int, dtype: str = "bfloat16"):
    arrays = inputs(6, 1, length, (4, 2), (16, 16))
    whole = [paddle.to_tensor(x.astype("float32")).astype(dtype) for x in arrays]
    for tensor in whole[:3]:
        tensor.stop_gradient = False
    return whole


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.documents([4, 6])])
def test_one_rank(mask, on_npu):
    *own, gradient = tensors(10, "float32")
    paddle_fused.reset_dispatch_log()
    out = ring_attention(*own, mask, group=ALONE)
    results = [out, *paddle.grad(out, own, gradient)]
    (record,) = paddle_fused.dispatch_log()
    assert (record.operator, record.backend) == ("ring_attention", "native")
    truth = attention(*map(wide, (*own, gradient)), mask, 0.25)
    for result, true in zip(results, truth, strict=True):
        assert np.abs(wide(result) - true).max() <= 1e-5 * np.abs(true).max()
    assert np.abs(wide(gathered_attention(*own, mask, group=ALONE)) - truth[0]).max() <= 1e-5


def test_the_computed_share(on_npu):
    *own, _ = tensors(8)
    report = paddle_fused.explain_dispatch(lambda: ring_attention(*own, masks.causal(), group=PAIR))
    assert (report.operator, report.chosen) == ("ring_attention", "ascend")
    assert report.support["ascend"].computed == 0.5
    assert "2 ranks, one group" in report.support["ascend"].mode


def test_an_odd_number_of_tokens_on_one_rank(on_npu):
    *own, _ = tensors(7)
    out = ring_attention(*own, masks.causal(), group=ALONE)
    assert np.abs(wide(out) - wide(paddle_fused.flash_attention(*own, masks.causal()))).max() <= 2e-2


def test_float64_and_strict_backends(on_npu):
    *own, _ = tensors(8, "float64")
    with paddle_fused.use_backend("composed", strict=True):
        out = ring_attention(*own, masks.causal(), group=ALONE)
    assert out.dtype == paddle.float64
    with paddle_fused.use_backend("ascend", strict=True), pytest.raises(ValueError, match="query is float32"):
        ring_attention(*tensors(8, "float32")[:3], group=ALONE)


@pytest.mark.parametrize(
    ("length", "mask", "groups", "sentence"),
    [
        (8, masks.band(3, 0), {}, r"gathered_attention takes windows"),
        (8, np.zeros((16, 16), bool), {}, "mask is ndarray"),
        (7, masks.causal(), {}, "14 tokens for 2 ranks .* multiple of 4"),
        (8, masks.documents([8]), {}, "have 8 queries"),
        (8, None, {"backward_group": ALONE}, "the same ranks"),
        (8, None, {"group": Group(-1, 93, [1, 2])}, "not in the group"),
        (8, None, {"scale": float("nan")}, "scale is nan"),
    ],
)
def test_calls_that_are_refused(length, mask, groups, sentence, on_npu):
    with pytest.raises(ValueError, match=sentence):
        ring_attention(*tensors(length)[:3], mask, **{"group": PAIR, **groups})


def test_gathered_keys_refuse_masks_that_cannot_be_cut(on_npu):
    with pytest.raises(ValueError, match=r"masks\.dense"):
        gathered_attention(*tensors(8)[:3], masks.prefix(3), group=PAIR)


def test_captured_programs_are_refused(on_npu):
    def call(query, key, value):
        return ring_attention(query, key, value, masks.causal(), group=ALONE)

    with pytest.raises(ValueError, match="captured program"):
        paddle.jit.to_static(call, full_graph=True)(*tensors(8)[:3])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recompute(use_reentrant, on_npu):
    *own, gradient = tensors(8)

    def call(query, key, value):
        return ring_attention(2 * query, 2 * key, value, masks.causal(), group=ALONE)

    expected = paddle.grad(call(*own), own, gradient)
    recompute(call, *own, use_reentrant=use_reentrant).backward(gradient)
    for tensor, wanted in zip(own, expected, strict=True):
        assert bool((tensor.grad == wanted).all())
