"""Attention of some queries and some of their keys, with softmax statistics, and its gradient.

A row of ring attention is computed in blocks. ``forward`` returns a block's output and the maximum and sum of
its softmax. ``backward`` computes the block's gradients from the output and statistics of the whole row:

    P = exp(scale * Q K^T - max) / sum     dS = P * (dO V^T - sum_d(dO * O))     dQ = scale * dS K     ...

The gradient kernels of flash attention compute exactly this. Autograd calls them with the statistics of its
own forward call. Here they are called directly:

    flash_attention_npu   registered again as flash_attention_npu_gradient by the host library; without that
                          library, through an autograd node whose saved tensors are replaced
    host kernels          pf_flash_attention_gradient

Legend: B batch, Sq and Skv queries and keys, T tokens of B * S, N heads, D and Dv head sizes. Statistics are
float32 [B, N, Sq, 1].
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate

import numpy as np
import paddle
import paddle.nn.functional as F

from paddle_fused import ascend, contracts, native
from paddle_fused.masks.sequences import NO_BOUND

from ..ops.arguments import dtype_name
from ..ops.attention.ascend import PLUGIN, form, query_factor

COPIES = 8  # of each value of the statistics, as CANN's kernels have it: a block of 32 bytes
LONGEST_CAUSAL = 8192  # tokens: the plugin's mask of a longer causal block would have more than 64 MiB
GRADIENT = "flash_attention_npu_gradient"


@dataclass(frozen=True)
class Plugin:
    """flash_attention_npu.

    Attributes:
        value_dim: Dv; a smaller value is padded to D.
        gradient: how its gradient kernel is called, a key of ``GRADIENTS``.
    """

    scale: float
    value_dim: int
    gradient: str = field(default_factory=lambda: REGISTERED if gradient_signature() else REPLACED)

    longest_causal = LONGEST_CAUSAL

    @property
    def has_documents(self) -> bool:
        return form() == "tensor13" and varlen_order() is not None

    def forward(self, query, key, value, causal: bool, documents: Sequence[int]):
        q, k, v = self._operands(query, key, value)
        if documents:
            q, k, v = map(_tokens, (q, k, v))
        out, row_max, row_sum, *_ = _attend(q, k, v, causal, tuple(documents))
        out = out.reshape([*query.shape[:3], out.shape[-1]])[..., : self.value_dim]
        if documents:
            batch = query.shape[0]
            return out, *(_from_varlen(x, documents, batch) for x in (row_max, row_sum))
        return out, row_max[..., :1], row_sum[..., :1]

    def backward(self, query, key, value, out, row_max, row_sum, out_grad, causal, documents):
        q, k, v = self._operands(query, key, value)
        missing = query.shape[-1] - self.value_dim
        out, out_grad = (_padded(x, missing).contiguous() for x in (out, out_grad))
        if documents:
            q, k, v, out, out_grad = map(_tokens, (q, k, v, out, out_grad))
            statistics = [_to_varlen(x, documents) for x in (row_max, row_sum)]
        else:
            statistics = [_copied(x) for x in (row_max, row_sum)]
        gradient = GRADIENTS[self.gradient]
        dq, dk, dv = gradient((q, k, v), (out, *statistics), out_grad, causal, tuple(documents))
        factor = self._factor(query)
        dq = dq if factor == 1 else dq * factor
        return dq.reshape(query.shape), dk.reshape(key.shape), dv[..., : self.value_dim].reshape(value.shape)

    def _operands(self, query, key, value):
        factor = self._factor(query)
        q = query if factor == 1 else query * factor
        v = _padded(value, query.shape[-1] - self.value_dim)
        return tuple(x.contiguous() for x in (q, key, v))

    def _factor(self, query) -> float:
        return query_factor(self.scale, query.shape[-1])

    def mode(self) -> str:
        return f"{PLUGIN}, {self.gradient}"


def plugin_reason(query, key, value, scale: float) -> str | None:
    """Why the plugin cannot compute blocks of these tensors, or None."""
    reason = ascend.unsupported_reason(query, key, value, operators=(PLUGIN,))
    if reason is not None:
        return reason
    if form() is None:
        return f"{PLUGIN} of the plugin that is installed has neither of its two released forms"
    if dtype_name(query) not in contracts.dtypes("attention.plugin_dtype"):
        return contracts.reason("attention.plugin_dtype", PLUGIN, f"query is {dtype_name(query)}")
    if query_factor(scale, query.shape[-1]) is None:
        return f"{PLUGIN} has the scale 1 / sqrt(D) only; {scale:g} is not that times a power of two"
    return None


def _padded(x, missing: int):
    return F.pad(x, [0] * (2 * x.ndim - 1) + [missing]) if missing else x


def _tokens(x):
    """[B, S, N, D] to [T, N, D]."""
    return x.reshape([-1, *x.shape[2:]])


def _copied(statistics):
    return statistics.expand([*statistics.shape[:-1], COPIES]).contiguous()


def _flags(operator: str, causal: bool, is_varlen: bool) -> list:
    values = {
        "dropout": 0.0,
        "causal": causal,
        "return_softmax": True,
        "is_test": True,
        "is_triangle_upper_mask": False,
        "is_varlen": is_varlen,
    }
    return [values[name] for name in ascend.signature(operator).attributes]


def _attend(q, k, v, causal: bool, documents: tuple[int, ...]) -> list:
    lengths = {}
    if documents:
        ends = _ends(documents, "int32", paddle.device.get_device())
        lengths = {"actual_seq_q_len": ends, "actual_seq_kv_len": ends}
    inputs = {"query": q, "key": k, "value": v, **lengths}
    arguments = [inputs.get(name) for name in ascend.signature(PLUGIN).inputs]
    return ascend.call(PLUGIN, *arguments, *_flags(PLUGIN, causal, bool(documents)))


@lru_cache(maxsize=64)
def _ends(documents: tuple[int, ...], dtype: str, device: str):
    """Cumulative lengths without the leading 0, which the layers of a model share."""
    return paddle.to_tensor(list(accumulate(documents)), dtype=dtype, place=device)


@cache
def gradient_signature() -> ascend.Signature | None:
    """The signature of the plugin's gradient kernel as an operator; None without the host library."""
    ascend.register()
    try:
        native.register()
    except RuntimeError:
        return None
    return ascend.signature(GRADIENT)


def _registered_gradient(inputs, outputs, out_grad, causal: bool, documents: tuple[int, ...]):
    query, key, value = inputs
    out, row_max, row_sum = outputs
    unused = paddle.zeros([1], "int64")  # of dropout
    tensors = {
        "query": query,
        "key": key,
        "value": value,
        "attention_score_grad": out_grad,
        "softmax_max": row_max,
        "softmax_sum": row_sum,
        "softmax_out": paddle.zeros([1], query.dtype),
        "attention_score": out,
        **dict.fromkeys(("seed", "offset", "numel"), unused),
    }
    if documents:
        ends = _ends(documents, "int32", paddle.device.get_device())
        tensors |= {"actual_seq_q_len": ends, "actual_seq_kv_len": ends}
    arguments = [tensors.get(name) for name in gradient_signature().inputs]
    return native.run(GRADIENT, *arguments, *_flags(GRADIENT, causal, bool(documents)))


# (inputs, outputs) of calls whose saved tensors are replaced.
_nodes: OrderedDict[tuple, tuple] = OrderedDict()
MOST_NODES = 8


def _gradient_by_replaced_tensors(inputs, outputs, out_grad, causal: bool, documents: tuple[int, ...]):
    """The operator's own backward, after the memory of its saved tensors was exchanged.

    Only public calls of Paddle and of the plugin are used. A kind of call costs one forward at first.
    """
    device = paddle.device.get_device()
    key = (*(tuple(x.shape) for x in inputs), dtype_name(inputs[0]), causal, documents, device)
    node = _nodes.pop(key, None)
    if node is None:
        own = [x.detach().clone() for x in inputs]
        for x in own:
            x.stop_gradient = False
        with paddle.enable_grad():
            node = own, _attend(*own, causal, documents)
    own, results = node
    held = [x.contiguous() for x in (*inputs, *outputs)]  # get_tensor() does not keep its source alive
    for saved, new in zip((*own, *results[:3]), held, strict=True):
        _share(saved, new)
    paddle.autograd.backward([results[0]], [out_grad], retain_graph=True)
    gradients = [x.grad.detach().clone() for x in own]
    for x in own:
        x.clear_gradient(False)
    for saved in (*own, *results[:3]):  # the node does not keep the memory of the last call
        _share(saved, paddle.empty([1], saved.dtype))
    _nodes[key] = node
    if len(_nodes) > MOST_NODES:
        _nodes.popitem(last=False)
    return gradients


def _share(tensor, source) -> None:
    tensor.get_tensor()._share_data_with(source.get_tensor())


REGISTERED, REPLACED = "gradient kernel registered", "saved tensors replaced"
GRADIENTS = {REGISTERED: _registered_gradient, REPLACED: _gradient_by_replaced_tensors}


# The order in which flash_attention_npu writes the statistics of documents into a tensor of shape [T, N, 8].
# The plugin does not state it. CANN's manual of aclnnFlashAttentionVarLenScore states [N, T, 8]; CANN's tests
# and MindSpeed's ring attention rely on "sequence by sequence".
def _token_major(x, documents):
    return x


def _head_major(x, documents):
    return x.reshape([x.shape[1], x.shape[0], -1]).transpose([1, 0, 2])


def _by_sequence(x, documents):
    flat, heads = x.reshape([-1, x.shape[-1]]), x.shape[1]
    parts = paddle.split(flat, [size * heads for size in documents])
    return paddle.concat([part.reshape([heads, -1, x.shape[-1]]).transpose([1, 0, 2]) for part in parts])


def _to_head_major(x, documents):
    return x.transpose([1, 0, 2]).reshape(x.shape)


def _to_sequences(x, documents):
    parts = [
        part.transpose([1, 0, 2]).reshape([-1, x.shape[-1]]) for part in paddle.split(x, list(documents))
    ]
    return paddle.concat(parts).reshape(x.shape)


# For each order: to and from [T, N, 8] with tokens first.
ORDERS: dict[str, tuple[Callable, Callable]] = {
    "tokens, heads": (_token_major, _token_major),
    "heads, tokens": (_head_major, _to_head_major),
    "sequence by sequence: heads, tokens": (_by_sequence, _to_sequences),
}


@cache
def varlen_order() -> str | None:
    """The order of the statistics of documents, measured once on the current device; None if it is unknown.

    Three documents are computed together and one by one.
    """
    documents, heads, size = (3, 1, 2), 2, 16
    random = np.random.default_rng(0)
    q, k, v = (
        paddle.to_tensor(random.standard_normal([sum(documents), heads, size]).astype("float32")).astype(
            "bfloat16"
        )
        for _ in range(3)
    )
    with paddle.no_grad():
        together = _attend(q, k, v, False, documents)[1]
        parts = [paddle.split(x, list(documents)) for x in (q, k, v)]
        alone = [_attend(*(x.unsqueeze(0) for x in part), False, ())[1] for part in zip(*parts, strict=True)]
    truth = np.concatenate([x.numpy()[0].transpose(1, 0, 2) for x in alone])
    for name, (read, _) in ORDERS.items():
        if np.allclose(read(together, documents).numpy(), truth, rtol=1e-2, atol=1e-3):
            return name
    return None


def _from_varlen(x, documents, batch: int):
    x = ORDERS[varlen_order()][0](x, documents)[..., :1]
    return x.reshape([batch, -1, *x.shape[1:]]).transpose([0, 2, 1, 3])


def _to_varlen(x, documents):
    tokens = _copied(x.transpose([0, 2, 1, 3])).reshape([-1, x.shape[1], COPIES])
    return ORDERS[varlen_order()][1](tokens, documents).contiguous()


@dataclass(frozen=True)
class Host:
    """The host kernels, in float32, bfloat16 and float16."""

    scale: float

    longest_causal = None
    has_documents = True

    def forward(self, query, key, value, causal: bool, documents: Sequence[int]):
        tensors, ends, layout = _host_operands((query, key, value), documents)
        out, row_max, row_sum, _ = native.call(
            "pf_flash_attention",
            *(*tensors, None, None, ends, ends, None),
            *(layout, 0, self.scale, 0.0, _bands(causal), "top_left"),
        )
        if documents:
            out = out.reshape([*query.shape[:3], value.shape[-1]])
            row_max, row_sum = (
                x[..., :1].reshape([*query.shape[:3], 1]).transpose([0, 2, 1, 3]) for x in (row_max, row_sum)
            )
        return out, row_max[..., :1], row_sum[..., :1]

    def backward(self, query, key, value, out, row_max, row_sum, out_grad, causal, documents):
        tensors, ends, _ = _host_operands((query, key, value), documents)
        statistics = (row_max, row_sum)
        if documents:
            out, out_grad = map(_tokens, (out, out_grad))
            statistics = (x.transpose([0, 2, 1, 3]).reshape([-1, x.shape[1], 1]) for x in statistics)
        dq, dk, dv = native.call(
            "pf_flash_attention_gradient",
            *(*tensors, ends, ends, out, *map(_copied, statistics), out_grad),
            *(self.scale, _bands(causal)),
        )
        return dq.reshape(query.shape), dk.reshape(key.shape), dv.reshape(value.shape)

    @staticmethod
    def mode() -> str:
        return "pf_flash_attention"


def host_reason(query, key, value) -> str | None:
    if dtype_name(query) == "float64":
        return "the host kernels compute in float32, bfloat16 and float16, not in float64"
    return native.unsupported_reason(query, key, value)


def _host_operands(tensors, documents):
    if not documents:
        return tensors, None, "BSND"
    return map(_tokens, tensors), _ends(tuple(documents), "int64", "cpu"), "TND"


def _bands(causal: bool) -> list[int]:
    return [-NO_BOUND, 0 if causal else NO_BOUND, 0]


@dataclass(frozen=True)
class Composed:
    """Products and exponentials of plain Paddle, in float32 or float64: the definition.

    Memory grows with Sq * Skv. Results are not rounded to 16 bits, because they are summed over blocks.
    """

    scale: float

    longest_causal = 2048  # halves the work of a long causal block
    has_documents = False

    def forward(self, query, key, value, causal: bool, documents: Sequence[int]):
        q, k, v = (_heads_first(x, query.shape[2]) for x in (query, key, value))
        scores = self._scores(q, k, causal)
        row_max = scores.max(-1, keepdim=True)
        weights = (scores - row_max).exp()
        row_sum = weights.sum(-1, keepdim=True)
        return paddle.matmul(weights / row_sum, v).transpose([0, 2, 1, 3]), row_max, row_sum

    def backward(self, query, key, value, out, row_max, row_sum, out_grad, causal, documents):
        q, k, v, o, g = (_heads_first(x, query.shape[2]) for x in (query, key, value, out, out_grad))
        probability = (self._scores(q, k, causal) - row_max).exp() / row_sum
        delta = (g * o).sum(-1, keepdim=True)
        scores_grad = probability * (paddle.matmul(g, v, transpose_y=True) - delta) * self.scale
        dq = paddle.matmul(scores_grad, k).transpose([0, 2, 1, 3])
        dk = paddle.matmul(scores_grad, q, transpose_x=True)
        dv = paddle.matmul(probability, g, transpose_x=True)
        return dq, *(_summed_over_groups(x, key.shape[2]) for x in (dk, dv))

    def _scores(self, q, k, causal: bool):
        scores = paddle.matmul(q, k, transpose_y=True) * self.scale
        if causal:
            hidden = paddle.triu(paddle.ones(scores.shape[-2:], "int32"), 1).astype("bool")
            scores = paddle.where(hidden, paddle.full([], -math.inf, scores.dtype), scores)
        return scores

    @staticmethod
    def mode() -> str:
        return ""


def _heads_first(x, heads: int):
    """[B, S, Nkv, D] to [B, N, S, D], in float32 if it is in 16 bits."""
    batch, length, own, size = x.shape
    x = x.transpose([0, 2, 1, 3])
    x = x if dtype_name(x) == "float64" else x.astype("float32")
    if own == heads:
        return x
    wide = x.unsqueeze(2).expand([batch, own, heads // own, length, size])
    return wide.reshape([batch, heads, length, size])


def _summed_over_groups(x, key_heads: int):
    """[B, N, S, D] to [B, S, Nkv, D]."""
    batch, heads, length, size = x.shape
    return x.reshape([batch, key_heads, heads // key_heads, length, size]).sum(2).transpose([0, 2, 1, 3])
