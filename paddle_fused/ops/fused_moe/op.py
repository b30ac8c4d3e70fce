"""fused_moe: a dropless mixture-of-experts feed-forward layer.

Shapes: T tokens, H hidden size, I intermediate size, K experts per token, E experts.
"""

from __future__ import annotations

import paddle

from paddle_fused import native, paddle_release
from paddle_fused.dispatch import BACKENDS, Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule

from ..arguments import (
    COMPOSED_FLOATS,
    check_is_tensor,
    check_one_device,
    check_shape,
    check_tensor,
    dtype_name,
)
from ..grouped_matmul.op import COUNTS, GROUPED_MATMUL, check_product
from ..moe_token_permute.op import MOE_TOKEN_PERMUTE, check_tokens
from ..moe_token_unpermute.op import MOE_TOKEN_UNPERMUTE
from ..swiglu.op import SWIGLU

OPERATOR = "fused_moe"


def fused_moe(
    hidden, router, gate_up_weight, down_weight, top_k: int | None = None, norm_topk_prob: bool = True
):
    """out[t] = sum over t's experts e of prob[t, e] * swiglu(hidden[t] @ gate_up_weight[e]) @ down_weight[e].

    Tokens are permuted into the order of their experts, multiplied by both weights group by group with swiglu
    in between, and each token's rows are summed. With logits, the experts are the top_k of softmax(router),
    computed in float32; with norm_topk_prob their probabilities are divided by their sum.

    Args:
        hidden: [T, H], float32, bfloat16 or float16 (float64: composed only).
        router: logits [T, E], float32, bfloat16 or float16; or a pair (probs [T, K], indices [T, K] int32 or
            int64), which is used unchanged.
        gate_up_weight: [E, H, 2I], hidden's dtype: the gate is in the first I columns.
        down_weight: [E, I, H], hidden's dtype.
        top_k: experts per token. Optional with a pair.
        norm_topk_prob: whether probabilities from logits sum to 1 over a token's experts.

    Returns:
        [T, H], hidden's dtype. Gradients flow to hidden, the weights, and the logits or probs.

    Raises:
        ValueError: for shapes and dtypes other than these, an expert index out of range, and for what
            ``moe_token_permute`` and ``grouped_matmul`` refuse; before Paddle 3.1 also for zero tokens.

    Source: the chain of npu_moe_token_permute, npu_grouped_matmul, npu_swiglu and npu_moe_token_unpermute in
    LLaMA-Factory and MindSpeed.
    """
    check_tensor(OPERATOR, "hidden", hidden)
    check_is_tensor(OPERATOR, "gate_up_weight", gate_up_weight)
    check_one_device(OPERATOR, hidden=hidden, gate_up_weight=gate_up_weight)
    check_product(hidden, gate_up_weight)
    experts, width, both = gate_up_weight.shape
    if both % 2:
        raise ValueError(
            f"{OPERATOR}: gate_up_weight has shape {[experts, width, both]}; accepted: [E, H, 2I], where the "
            "gate's I columns come first."
        )
    check_tensor(OPERATOR, "down_weight", down_weight, dtypes=(dtype_name(hidden),))
    check_shape(OPERATOR, "down_weight", down_weight, [experts, both // 2, width], "[E, I, H]")
    check_one_device(OPERATOR, hidden=hidden, down_weight=down_weight)
    paddle_release.check_min_tokens(OPERATOR, hidden)
    if isinstance(router, (list, tuple)):
        probs, indices = _given(hidden, router, experts, top_k)
    else:
        probs, indices = _chosen(hidden, router, experts, top_k, norm_topk_prob)
    return FUSED_MOE(hidden, probs, indices, gate_up_weight, down_weight)


def _given(hidden, router, experts: int, top_k: int | None):
    if len(router) != 2:
        raise ValueError(
            f"{OPERATOR}: router holds {len(router)} tensors; accepted: logits, or a pair (probs, indices)."
        )
    probs, indices = router
    check_tokens(hidden, indices)
    check_tensor(OPERATOR, "probs", probs, dtypes=COMPOSED_FLOATS)
    check_one_device(OPERATOR, hidden=hidden, probs=probs)
    if len(probs.shape) != 2 or top_k not in (None, probs.shape[1]):
        raise ValueError(
            f"{OPERATOR}: probs has shape {list(probs.shape)} and top_k is {top_k}; accepted: [T, K] and K, "
            "or no top_k."
        )
    check_shape(OPERATOR, "probs", probs, list(indices.shape), "as indices")
    if native.can_read(indices) and indices.size > 0:
        values = indices.numpy()
        if values.min() < 0 or values.max() >= experts:
            raise ValueError(
                f"{OPERATOR}: indices go from {values.min()} to {values.max()}; accepted: 0 to "
                f"{experts - 1}, the experts that have weights."
            )
    return probs, indices


def _chosen(hidden, logits, experts: int, top_k: int | None, norm_topk_prob: bool):
    check_tensor(OPERATOR, "router", logits, dtypes=COMPOSED_FLOATS)
    check_one_device(OPERATOR, hidden=hidden, router=logits)
    check_shape(OPERATOR, "router", logits, [hidden.shape[0], experts], "logits [T, E]")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= experts:
        raise ValueError(
            f"{OPERATOR}: top_k is {top_k!r}; accepted for logits: 1 to {experts}, the number of experts."
        )
    wide = logits if dtype_name(logits) == "float64" else logits.astype("float32")
    every = paddle.nn.functional.softmax(wide, axis=-1)
    # The probabilities are gathered by index: paddle-custom-npu has no gradient of topk.
    if logits.shape[0] == 0:  # Paddle's topk of zero rows loses the shape in a captured program
        indices = paddle.zeros([0, top_k], "int64")
    else:
        _, indices = paddle.topk(every.detach(), top_k, axis=-1)
    check_tokens(hidden, indices)
    probs = paddle.take_along_axis(every, indices, 1, broadcast=False)
    return probs / probs.sum(-1, keepdim=True) if norm_topk_prob else probs, indices


def _on(backend: str) -> Backend:
    """The layer with all of its operators on one backend."""
    permute, matmul = MOE_TOKEN_PERMUTE.backends[backend], GROUPED_MATMUL.backends[backend]
    unpermute = MOE_TOKEN_UNPERMUTE.backends[backend]

    def run(hidden, probs, indices, gate_up_weight, down_weight):
        experts = gate_up_weight.shape[0]
        rows, sorted_indices = permute.run(hidden, indices, 0)
        counts = paddle_release.counts_of(indices, experts)
        both = matmul.run(rows, gate_up_weight, counts, COUNTS)
        made = matmul.run(_swiglu_on(backend, both).run(both, None), down_weight, counts, COUNTS)
        return unpermute.run(made, sorted_indices, probs)

    def refuses(hidden, probs, indices, gate_up_weight, down_weight):
        return (
            permute.refuses(hidden, indices, 0)
            or matmul.refuses(hidden, gate_up_weight, indices, COUNTS)
            or matmul.refuses(hidden, down_weight, indices, COUNTS)
            or unpermute.refuses(hidden, indices, probs)
        )

    chain = "permute, grouped matmul, swiglu, grouped matmul, unpermute"
    return Backend(run, refuses, f"{chain}, as {backend} has them")


def _swiglu_on(backend: str, x) -> Backend:
    # Rows that aclnnSwiGluGrad cannot align use the composed swiglu, on the same device.
    chosen = SWIGLU.backends[backend]
    return chosen if chosen.refuses(x, None) is None else SWIGLU.composed


def _sharding_rule(hidden, probs, indices, gate_up_weight, down_weight) -> ShardingRule:
    rows, weights = ("tokens", None), (None, None, None)
    inputs = {
        "hidden": rows,
        "probs": rows,
        "indices": ("tokens", *(None,) * (len(indices.shape) - 1)),
        "gate_up_weight": weights,
        "down_weight": weights,
    }
    return ShardingRule(inputs, (rows,))


FUSED_MOE = FusedOp(
    OPERATOR,
    **{backend: _on(backend) for backend in BACKENDS},
    sharding=Sharding(("hidden", "probs", "indices", "gate_up_weight", "down_weight"), _sharding_rule),
)
