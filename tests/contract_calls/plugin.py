"""The operators of the plugin, as the virtual NPU answers them."""

import custom_operator
import numpy as np
import paddle
from flash_attention_program import flash_attention
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
    """Too large in one respect; the tensor is a view of one number, so that it takes no memory."""
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


CALLS = [
    *ATTENTION,
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
