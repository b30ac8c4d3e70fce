"""Attention between the patches of many windows, in one call or a few."""

import numpy as np
import paddle

import paddle_fused
from llm_npu.surgery import vision_attention
from paddle_fused import contracts

HEADS, HEAD_DIM = 2, 16


def test_windows_beyond_the_operators_limit_are_split_into_calls():
    """The operator takes at most 2K sequences in layout TND."""
    paddle.set_device("npu:0")
    count, window = contracts.limit("attention.sequences") + 1, 3
    shape = [count, HEADS, window, HEAD_DIM]
    random = np.random.default_rng(0)
    windows = [paddle.to_tensor(random.standard_normal(shape, np.float32), "bfloat16") for _ in range(3)]
    joined = [x.transpose([1, 0, 2, 3]).reshape([1, HEADS, count * window, HEAD_DIM]) for x in windows]
    paddle_fused.reset_dispatch_log()
    out, _ = vision_attention.attention(None, *joined, lengths=(window,) * count)
    (ran,) = paddle_fused.dispatch_log()
    assert (ran.backend, ran.count) == ("ascend", 2)
    expected = paddle_fused.flash_attention(*windows, None, layout="BNSD").transpose([0, 2, 1, 3])
    assert paddle.equal_all(out.flatten(), expected.flatten())


def test_parts_are_equal_and_complete():
    lengths = tuple(range(1, 12))
    parts = vision_attention.at_most(4, lengths)
    assert [len(part) for part in parts] == [4, 4, 3]
    assert sum(parts, ()) == lengths
    assert vision_attention.at_most(4, (5, 6)) == [(5, 6)]
