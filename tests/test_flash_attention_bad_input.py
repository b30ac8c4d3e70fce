"""What ``flash_attention_npu`` refuses: always a ValueError that says what came and what is accepted."""

import paddle
import pytest
from flash_attention_program import flash_attention
from paddle.base import core


def tensor(shape=(1, 8, 2, 16), dtype="bfloat16"):
    return paddle.zeros(shape).astype(dtype)


def ends(*values):
    return paddle.to_tensor(values, dtype="int32")


def varlen(query_ends, kv_ends):
    return flash_attention(
        tensor((8, 2, 16)), tensor((8, 2, 16)), tensor((8, 2, 16)), ends=(query_ends, kv_ends)
    )


def masked(mask):
    return flash_attention(tensor(), tensor(), tensor(), mask=mask)


def requiring_gradient():
    x = tensor()
    x.stop_gradient = False
    return x


BAD = {
    "float32": (
        lambda: flash_attention(tensor(dtype="float32"), tensor(), tensor()),
        "The query tensor dtype must be bfloat16 or float16, but got float32.*161002",
    ),
    "two dtypes": (
        lambda: flash_attention(tensor(), tensor(dtype="float16"), tensor()),
        "key is float16 and query is bfloat16",
    ),
    "integer value": (
        lambda: flash_attention(tensor(), tensor(), tensor(dtype="int32")),
        "The value tensor dtype must be",
    ),
    "rank 2": (lambda: flash_attention(*[tensor((8, 16))] * 3), r"query has shape \[8, 16\].*B, S, N, D"),
    "rank 3 without varlen": (lambda: flash_attention(*[tensor((8, 2, 16))] * 3), "is_varlen is False"),
    "rank 4 with varlen": (
        lambda: flash_attention(*[tensor()] * 3, ends=(ends(8), ends(8))),
        r"T, N, D.*is_varlen is True",
    ),
    "key and value": (
        lambda: flash_attention(tensor(), tensor(), tensor((1, 9, 2, 16))),
        "they must be equal.*561002",
    ),
    "batch sizes": (lambda: flash_attention(tensor(), *[tensor((2, 8, 2, 16))] * 2), "batch sizes"),
    "head sizes": (lambda: flash_attention(tensor(), *[tensor((1, 8, 2, 8))] * 2), "head sizes"),
    "head size 513": (
        lambda: flash_attention(*[tensor((1, 2, 1, 513))] * 3),
        "head size is 513; accepted: 1 to 512",
    ),
    "head numbers": (
        lambda: flash_attention(tensor((1, 8, 3, 16)), tensor(), tensor()),
        "multiple of the number of key heads",
    ),
    "257 heads": (lambda: flash_attention(*[tensor((1, 2, 257, 1))] * 3), "accepted: 1 to 256"),
    "no keys": (lambda: flash_attention(tensor(), *[tensor((1, 0, 2, 16))] * 2), "at least one key"),
    "dropout 1.5": (
        lambda: flash_attention(*[tensor()] * 3, dropout=1.5),
        r"must be in range of \[0, 1\], but got 1.5",
    ),
    "dropout -0.1": (lambda: flash_attention(*[tensor()] * 3, dropout=-0.1), r"must be in range of \[0, 1\]"),
    "seed of one element": (
        lambda: flash_attention(*[tensor()] * 3, dropout=0.5, seed_offset=paddle.ones([1], "int64")),
        "int64 with two elements",
    ),
    "mask of numbers": (
        lambda: masked(paddle.zeros([8, 8])),
        "The mask tensor dtype must be bool, but got float32",
    ),
    "mask shape": (
        lambda: masked(paddle.zeros([1, 1, 1, 8], "bool")),
        r"accepted for these tensors: \[1, 2, 8, 8\], \[1, 1, 8, 8\]",
    ),
    "mask on cpu": (lambda: masked(paddle.zeros([8, 8], "bool").cpu()), "attn_mask is on cpu"),
    "query on cpu": (
        lambda: flash_attention(tensor().cpu(), tensor(), tensor()),
        "query is on cpu, key is on npu:0",
    ),
    "all on cpu": (lambda: flash_attention(*[tensor().cpu()] * 3), "all of them must be on one npu device"),
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
        "actual_seq_q_len and actual_seq_kv_len must be provided",
    ),
    "int64 lengths": (
        lambda: varlen(paddle.to_tensor([8]), ends(8)),
        "actual_seq_q_len is int64.*accepted: int32",
    ),
    "decreasing": (
        lambda: varlen(ends(5, 3, 8), ends(3, 5, 8)),
        r"actual_seq_q_len is \[5, 3, 8\]; it must hold cumulative",
    ),
    "negative": (lambda: varlen(ends(-1, 8), ends(3, 8)), "cumulative"),
    "wrong end": (lambda: varlen(ends(3, 8), ends(3, 7)), "actual_seq_kv_len.*the tensor has 8 tokens"),
    "unequal lists": (lambda: varlen(ends(3, 8), ends(8)), "has 2 elements and actual_seq_kv_len has 1"),
    "causal with unequal lengths": (
        lambda: flash_attention(tensor(), *[tensor((1, 9, 2, 16))] * 2, causal=True),
        r"query has 8 positions and key 9.*561002",
    ),
    "loss of the statistics alone": (
        lambda: flash_attention(*[requiring_gradient()] * 3)[1].sum().backward(),
        "only attention_score has a gradient",
    ),
    "queries without keys": (lambda: varlen(ends(3, 8), ends(0, 8)), "sequence 0 has queries but no keys"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=rf"(?s)flash_attention_npu: .*{message}"):
        call()
