"""Calls of the plugin's operators on the virtual NPU."""

import functools
import socket

import custom_operator
import numpy as np
import paddle
import pytest
from flash_attention_program import flash_attention
from paddle.base import core
from precision import npu


def bshd(*shape, dtype="bfloat16"):
    return paddle.zeros(shape or (1, 8, 2, 16)).astype(dtype)


def attend(query=(1, 8, 2, 16), key=None, value=None, **keywords):
    key = key or query
    return flash_attention(*(bshd(*shape) for shape in (query, key, value or key)), **keywords)


def ends(*values):
    return paddle.to_tensor(values, dtype="int32")


def packed(query_ends, key_ends=None, tokens=8, **keywords):
    both = (query_ends, query_ends if key_ends is None else key_ends)
    return three(bshd(tokens, 2, 16), ends=both, **keywords)


def masked(*shape, dtype="bool", **keywords):
    return attend(mask=paddle.zeros(shape, dtype), **keywords)


def wide(heads=1, head_dim=1, tokens=1, batch=1):
    """Too large in one dimension; the tensor is an expanded number, which takes no memory."""
    return paddle.zeros([1, 1, 1, 1]).astype("bfloat16").expand([batch, tokens, heads, head_dim])


def three(x, **keywords):
    return flash_attention(x, x, x, **keywords)


M = 1 << 20
ATTENTION = [
    ("attention.plugin_dtype", lambda: three(bshd(dtype="float32"))),
    ("attention.plugin_dtype", lambda: flash_attention(bshd(), bshd(), bshd(dtype="int32"))),
    ("attention.same_dtype", lambda: flash_attention(bshd(), bshd(dtype="float16"), bshd())),
    ("attention.plugin_rank", lambda: three(bshd(8, 16))),
    ("attention.plugin_rank", lambda: three(bshd(), ends=(ends(8), ends(8)))),
    ("attention.same_batch", lambda: attend(key=(2, 8, 2, 16))),
    ("attention.batch", lambda: three(wide(batch=2 * M + 1))),
    ("attention.heads", lambda: three(wide(heads=257))),
    ("attention.head_groups", lambda: attend((1, 8, 3, 16), (1, 8, 2, 16))),
    ("attention.sequence", lambda: three(wide(tokens=M + 1))),
    ("attention.tokens", lambda: three(wide(tokens=M + 1)[0], ends=(ends(M + 1), ends(M + 1)))),
    ("attention.head_dim", lambda: three(wide(head_dim=513))),
    ("attention.same_head_dim", lambda: attend(key=(1, 8, 2, 8))),
    ("attention.plugin_value", lambda: attend(value=(1, 9, 2, 16))),
    ("attention.no_keys", lambda: attend(key=(1, 0, 2, 16))),
    ("attention.no_keys", lambda: packed(ends(3, 8), ends(0, 8))),
    ("attention.keep_prob", lambda: attend(dropout=1.0)),
    ("attention.plugin_dropout", lambda: attend(dropout=1.5)),
    ("attention.plugin_mask_dtype", lambda: masked(8, 8, dtype="float32")),
    ("attention.mask_shape", lambda: masked(1, 1, 1, 8)),
    ("attention.mask_shape_varlen", lambda: packed(ends(3, 8), mask=paddle.zeros([8, 8], "bool"))),
    ("attention.hidden_rows", lambda: packed(ends(3, 8), mask=paddle.ones([5, 5], "bool"))),
    ("attention.plugin_causal", lambda: attend(key=(1, 9, 2, 16), causal=True)),
    ("attention.plugin_lengths_missing", lambda: packed(None, ends(8))),
    ("attention.plugin_lengths", lambda: packed(paddle.to_tensor([8]), ends(8))),
    ("attention.lengths_count", lambda: packed(ends(3, 8), ends(8))),
    ("attention.lengths_order", lambda: packed(ends(5, 3, 8))),
    ("attention.lengths_total", lambda: packed(ends(3, 7))),
    ("attention.sequences", lambda: packed(ends(*range(1, 2050)), tokens=2049)),
    ("attention.plugin_seed", lambda: attend(dropout=0.5, seed_offset=paddle.ones([1], "int64"))),
]


def rms_norm(x=(4, 8), gamma=(8,), dtype="float32", gamma_dtype=None, epsilon=1e-6):
    tensors = npu(np.ones(x), dtype), npu(np.ones(gamma), gamma_dtype or dtype)
    return custom_operator.run("rms_norm_npu", *tensors, epsilon)


def fused_rope(query=(2, 8, 4, 64), angles=None, dtype="float32", angles_dtype=None):
    angles = npu(np.ones(angles or (1, query[1], 1, query[-1])), angles_dtype or dtype)
    return custom_operator.run("fused_rope", npu(np.ones(query), dtype), angles, angles)


@functools.cache
def domain(number=0):
    """The name of a communication domain of this process only."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PADDLE_TRAINER_ID", "0")  # as a launcher would
        store = core.TCPStore("127.0.0.1", port, True, 1)
        group = core.ProcessGroupCustom.create(store, "npu", 0, 1, number)
        kept.append((store, group))
        return group.get_comm_name(0)


kept = []  # a domain ends with its group


def fused(operator, x1=(8, 256), x2=(256, 16), bias=None, dtype="bfloat16", x2_dtype=None, **settings):
    """x1 and x2 are expanded numbers, which take no memory."""
    tensors = [
        paddle.zeros([1]).astype(dtype_of_one).expand(shape)
        for shape, dtype_of_one in ((x1, dtype), (x2, x2_dtype or dtype))
    ]
    added = None if bias is None else paddle.zeros([bias]).astype(dtype)
    defaults = {"hcom": settings.get("hcom", "") or domain(), "world_size": 2, "reduce_op": "sum"}
    defaults |= {"gather_index": 0, "gather_output": True, "comm_turn": 0}
    values = [{**defaults, **settings}[name] for name in ATTRIBUTES[operator]]
    return custom_operator.run(operator, *tensors, added, *values)


ATTRIBUTES = {
    "fused_mm_allreduce": ("hcom", "reduce_op", "comm_turn"),
    "fused_allgather_mm": ("hcom", "world_size", "gather_index", "gather_output", "comm_turn"),
    "fused_mm_reduce_scatter": ("hcom", "world_size", "reduce_op", "comm_turn"),
}
ALL_REDUCE, GATHER, REDUCE_SCATTER = ATTRIBUTES


def second_domain():
    fused(ALL_REDUCE, x1=(1, 1), x2=(1, 1))
    fused(ALL_REDUCE, hcom=domain(1))


MATMUL_COLLECTIVES = [
    *(("mc2.dtype", lambda name=name: fused(name, dtype="float32")) for name in ATTRIBUTES),
    ("mc2.same_dtype", lambda: fused(ALL_REDUCE, x2_dtype="float16")),
    ("mc2.rank", lambda: fused(GATHER, x1=(2, 4, 256))),
    ("mc2.same_depth", lambda: fused(REDUCE_SCATTER, x1=(8, 257))),
    *(("mc2.depth", lambda k=k: fused(GATHER, x1=(8, k), x2=(k, 16))) for k in (255, 65535)),
    ("mc2.depth", lambda: fused(REDUCE_SCATTER, x1=(8, 255), x2=(255, 16))),
    ("mc2.all_reduce_sizes", lambda: fused(ALL_REDUCE, x1=(8, 0), x2=(0, 16))),
    ("mc2.bias", lambda: fused(GATHER, bias=16)),
    ("mc2.bias", lambda: fused(REDUCE_SCATTER, bias=16)),
    ("mc2.bias_shape", lambda: fused(ALL_REDUCE, bias=8)),
    ("mc2.world_size", lambda: fused(GATHER, world_size=3)),
    ("mc2.world_size", lambda: fused(REDUCE_SCATTER, world_size=2)),  # the domain has one rank
    ("mc2.rows", lambda: fused(REDUCE_SCATTER, x1=(7, 256))),
    ("mc2.reduce_op", lambda: fused(ALL_REDUCE, reduce_op="max")),
    ("mc2.comm_turn", lambda: fused(GATHER, comm_turn=1)),
    ("mc2.gather_index", lambda: fused(GATHER, gather_index=1)),
    ("mc2.hcom", lambda: fused(ALL_REDUCE, hcom="nowhere")),
    ("mc2.domain", second_domain),
]

CALLS = [
    *ATTENTION,
    *MATMUL_COLLECTIVES,
    ("rms_norm.dtype", lambda: rms_norm(dtype="float64")),
    ("rms_norm.plugin_gamma_dtype", lambda: rms_norm(dtype="bfloat16", gamma_dtype="float32")),
    ("rms_norm.shape", lambda: rms_norm(gamma=(4,))),
    ("rms_norm.shape", lambda: rms_norm(x=(1,) * 8 + (8,))),
    ("rms_norm.epsilon", lambda: rms_norm(epsilon=-1.0)),
    ("rotary.dtype", lambda: fused_rope(dtype="float64")),
    ("rotary.same_dtype", lambda: fused_rope(angles_dtype="bfloat16")),
    ("rotary.rank", lambda: fused_rope(query=(8, 4, 64), angles=(1, 8, 1, 64))),
    ("rotary.plugin_head_dim", lambda: fused_rope(query=(2, 8, 4, 32))),
    ("rotary.head_dim", lambda: fused_rope(query=(2, 8, 4, 896))),
    ("rotary.batch_heads", lambda: fused_rope(query=(1, 8, 1000, 64))),
    ("rotary.plugin_angles", lambda: fused_rope(angles=(2, 8, 1, 64))),
    ("rotary.angles", lambda: fused_rope(angles=(1, 5, 1, 64))),
]
