"""Refusals of ``flash_attention_npu``: a ValueError that says what came and what is accepted."""

import paddle
import pytest
from flash_attention_program import flash_attention
from paddle.base import core

pytestmark = pytest.mark.sampled


def tensor(shape=(1, 8, 2, 16), dtype="bfloat16"):
    return paddle.zeros(shape).astype(dtype)


def ends(*values):
    return paddle.to_tensor(values, dtype="int32")


def varlen(query_ends, kv_ends):
    return flash_attention(
        tensor((8, 2, 16)), tensor((8, 2, 16)), tensor((8, 2, 16)), ends=(query_ends, kv_ends)
    )


def packed_and_masked(mask, triangle=False):
    lengths = ends(5, 8)
    x = tensor((8, 2, 16))
    return flash_attention(x, x, x, mask=mask, ends=(lengths, lengths), triangle=triangle)


def masked(mask):
    return flash_attention(tensor(), tensor(), tensor(), mask=mask)


def requiring_gradient():
    x = tensor()
    x.stop_gradient = False
    return x


BAD = {
    "float32": (
        lambda: flash_attention(tensor(dtype="float32"), tensor(), tensor()),
        r"query is float32; accepted: float16 or bfloat16\. Cast it",
    ),
    "two dtypes": (
        lambda: flash_attention(tensor(), tensor(dtype="float16"), tensor()),
        "key is float16 and query is bfloat16",
    ),
    "integer value": (
        lambda: flash_attention(tensor(), tensor(), tensor(dtype="int32")),
        "value is int32; accepted: float16 or bfloat16",
    ),
    "rank 2": (
        lambda: flash_attention(*[tensor((8, 16))] * 3),
        r"query has shape \[8, 16\] and is_varlen is False.*B, S, N, D",
    ),
    "rank 3 without varlen": (lambda: flash_attention(*[tensor((8, 2, 16))] * 3), "is_varlen is False"),
    "rank 4 with varlen": (
        lambda: flash_attention(*[tensor()] * 3, ends=(ends(8), ends(8))),
        r"query has shape \[1, 8, 2, 16\] and is_varlen is True.*T, N, D",
    ),
    "key and value": (
        lambda: flash_attention(tensor(), tensor(), tensor((1, 9, 2, 16))),
        r"value has shape \[1, 9, 2, 16\]; accepted: key and value .*561002",
    ),
    "batch sizes": (lambda: flash_attention(tensor(), *[tensor((2, 8, 2, 16))] * 2), "batch sizes"),
    "head sizes": (lambda: flash_attention(tensor(), *[tensor((1, 8, 2, 8))] * 2), "head sizes"),
    "head size 513": (
        lambda: flash_attention(*[tensor((1, 2, 1, 513))] * 3),
        r"head size is 513; accepted: a head size from 1 to 512 \(768 since CANN 8.3.*161002",
    ),
    "head numbers": (
        lambda: flash_attention(tensor((1, 8, 3, 16)), tensor(), tensor()),
        "multiple of the number of key heads",
    ),
    "257 heads": (lambda: flash_attention(*[tensor((1, 2, 257, 1))] * 3), "accepted: 1 to 256"),
    "no keys": (lambda: flash_attention(tensor(), *[tensor((1, 0, 2, 16))] * 2), "at least one key"),
    "dropout 1.5": (
        lambda: flash_attention(*[tensor()] * 3, dropout=1.5),
        "dropout is 1.5; accepted: a dropout probability from 0 to 1",
    ),
    "dropout -0.1": (lambda: flash_attention(*[tensor()] * 3, dropout=-0.1), "dropout is -0.1; accepted"),
    "dropout 1": (
        lambda: flash_attention(*[tensor()] * 3, dropout=1.0),
        "dropout is 1; accepted: a keep probability above 0.*561002",
    ),
    "seed of one element": (
        lambda: flash_attention(*[tensor()] * 3, dropout=0.5, seed_offset=paddle.ones([1], "int64")),
        r"fixed_seed_offset is int64 of shape \[1\]",
    ),
    "mask of numbers": (lambda: masked(paddle.zeros([8, 8])), "attn_mask is float32; accepted: bool"),
    "mask shape": (
        lambda: masked(paddle.zeros([1, 1, 1, 8], "bool")),
        r"attn_mask has shape \[1, 1, 1, 8\] for query \[1, 8, 2, 16\].*accepted: \[B, N, Sq, Skv\].*561002",
    ),
    "mask on cpu": (lambda: masked(paddle.zeros([8, 8], "bool").cpu()), "attn_mask is on cpu"),
    "query on cpu": (
        lambda: flash_attention(tensor().cpu(), tensor(), tensor()),
        "query is on cpu, key is on npu:0",
    ),
    "all on cpu": (lambda: flash_attention(*[tensor().cpu()] * 3), "accepted: all on one npu device"),
    "two devices": (lambda: flash_attention(tensor(), tensor().to("npu:1"), tensor()), "key is on npu:1"),
    "no lengths": (
        lambda: core.eager._run_custom_op(
            "flash_attention_npu",
            *[tensor((8, 2, 16))] * 3,
            None,
            None,
            None,
            None,
            0.0,
            True,
            True,
            False,
            False,
            True,
        ),
        "actual_seq_q_len is missing; accepted: .*actual_seq_kv_len",
    ),
    "int64 lengths": (
        lambda: varlen(paddle.to_tensor([8]), ends(8)),
        r"actual_seq_q_len is int64.*accepted: .*int32",
    ),
    "decreasing": (
        lambda: varlen(ends(5, 3, 8), ends(3, 5, 8)),
        r"actual_seq_q_len is \[5, 3, 8\]; accepted: .*cumulative lengths",
    ),
    "negative": (lambda: varlen(ends(-1, 8), ends(3, 8)), "cumulative"),
    "wrong end": (
        lambda: varlen(ends(3, 8), ends(3, 7)),
        "actual_seq_kv_len.*the tensor has 8 tokens.*561002",
    ),
    "unequal lists": (
        lambda: varlen(ends(3, 8), ends(8)),
        "has 2 elements and actual_seq_kv_len has 1.*561002",
    ),
    "causal with unequal lengths": (
        lambda: flash_attention(tensor(), *[tensor((1, 9, 2, 16))] * 2, causal=True),
        "query has 8 positions and key 9; accepted: ",
    ),
    "loss of the statistics alone": (
        lambda: flash_attention(*[requiring_gradient()] * 3)[1].sum().backward(),
        "only attention_score has a gradient",
    ),
    "queries without keys": (
        lambda: varlen(ends(3, 8), ends(0, 8)),
        "sequence 0 has queries but no keys.*561002",
    ),
    "mask that hides a row of a packed sequence": (
        lambda: packed_and_masked(paddle.tril(paddle.ones([5, 5], "int32")).astype("bool")),
        "attn_mask .*query 4 in sequence 0; accepted: ",
    ),
    "triangle that leaves no key of a packed sequence": (
        lambda: packed_and_masked(paddle.arange(25).reshape([5, 5]) == 0, triangle=True),
        "attn_mask .*query 0 in sequence 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=rf"(?s)flash_attention_npu: .*{message}"):
        call()
