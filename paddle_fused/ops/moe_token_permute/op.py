"""moe_token_permute: sorts token rows by the expert to which they are routed.

Shapes: T tokens, H hidden size, K experts per token, M rows kept.
"""

from __future__ import annotations

import paddle

from paddle_fused import ascend, contracts, native
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule

from ..arguments import check_contract_dtype, check_one_device, dtype_name, no_16_bit_on_cpu

OPERATOR = "moe_token_permute"


def moe_token_permute(tokens, indices, num_out_tokens: int | None = None):
    """permuted[sorted_indices[i]] = tokens[i // K],  sorted_indices = argsort(argsort(indices.flatten())).

    The sort is stable: rows of the same expert keep the order of their tokens.

    Args:
        tokens: [T, H], float32, bfloat16 or float16 (float64: composed only).
        indices: [T, K] or [T] (K is 1), int32 or int64: the experts of each token, counted from 0.
        num_out_tokens: number of rows to keep. None or 0: all T * K. n > 0: the first n. n < 0: all except
            the last -n.

    Returns:
        permuted [M, H], tokens' dtype, and sorted_indices [T * K] int32 for ``moe_token_unpermute``. The
        indices of dropped rows are M or more. Gradients flow from permuted to tokens.

    Raises:
        ValueError: for other shapes and dtypes, and for CANN's limits: K above 512, 16777215 indices or more,
            and indices outside 0 to 16777214. (The values of indices are not checked on a card.)

    Source: aclnnMoeTokenPermute; torch_npu.npu_moe_token_permute.
    """
    check_tokens(tokens, indices)
    _check_values(indices)
    if isinstance(num_out_tokens, bool) or not isinstance(num_out_tokens, (int, type(None))):
        raise ValueError(f"{OPERATOR}: num_out_tokens is {num_out_tokens!r}; accepted: an integer or None.")
    return MOE_TOKEN_PERMUTE(tokens, indices, num_out_tokens or 0)


def check_tokens(tokens, indices) -> None:
    """Raises ContractError for shapes and dtypes of tokens and indices that a card does not support."""
    check_contract_dtype("moe.dtype", OPERATOR, "tokens", tokens)
    integers = contracts.dtypes("moe.indices_dtype")
    check_contract_dtype("moe.indices_dtype", OPERATOR, "indices", indices, integers)
    check_one_device(OPERATOR, tokens=tokens, indices=indices)
    if len(tokens.shape) != 2:
        contracts.refuse("moe.tokens", OPERATOR, f"tokens have shape {list(tokens.shape)}")
    shape = list(indices.shape)
    if len(shape) not in (1, 2) or (shape[0] != tokens.shape[0] and -1 not in (shape[0], tokens.shape[0])):
        received = f"indices have shape {shape} and tokens {list(tokens.shape)}"
        contracts.refuse("moe.indices_shape", OPERATOR, received)
    top_k = top_k_of(indices)
    if top_k == 0 or top_k > contracts.limit("moe.top_k"):
        contracts.refuse("moe.top_k", OPERATOR, f"indices have shape {shape}")
    if -1 not in shape and shape[0] * top_k >= contracts.limit("moe.indices"):
        contracts.refuse("moe.indices", OPERATOR, f"there are {shape[0] * top_k} indices")


def _check_values(indices) -> None:
    if not native.can_read(indices) or indices.size == 0:
        return
    values = indices.numpy()
    for value in (values.min(), values.max()):
        if not 0 <= value < contracts.limit("moe.indices"):
            contracts.refuse("moe.indices", OPERATOR, f"an index is {value}")


def top_k_of(indices) -> int:
    """The number of experts per token, from the shape of the indices."""
    return 1 if len(indices.shape) == 1 else indices.shape[1]


def _composed(tokens, indices, num_out_tokens):
    # A card can sort int64, but not int32.
    entry_at = paddle.argsort(indices.flatten().astype("int64"), stable=True)
    sorted_indices = paddle.argsort(entry_at).astype("int32")
    kept = entry_at[:num_out_tokens] if num_out_tokens else entry_at
    return paddle.gather(tokens, kept // top_k_of(indices)), sorted_indices


def _composed_unsupported(tokens, indices, num_out_tokens):
    return no_16_bit_on_cpu(tokens)


def _native(tokens, indices, num_out_tokens):
    permuted, sorted_indices = native.call("pf_moe_token_permute", tokens, indices, num_out_tokens)
    # Otherwise, Paddle expects a gradient wherever sorted_indices is used, and loses the gradient of tokens.
    sorted_indices.stop_gradient = True
    return permuted, sorted_indices


def _native_unsupported(tokens, indices, num_out_tokens):
    if dtype_name(tokens) == "float64":
        return "the host kernels do not support float64"
    return native.unsupported_reason(tokens, indices)


def _ascend_unsupported(tokens, indices, num_out_tokens):
    if dtype_name(tokens) == "float64":
        return contracts.reason("moe.dtype", OPERATOR, "tokens are float64")
    return ascend.unsupported_reason(tokens, indices)


def _sharding_rule(tokens, indices, num_out_tokens) -> ShardingRule:
    rows = (None, "hidden")  # the permutation covers all tokens
    return ShardingRule({"tokens": rows, "indices": (None,) * len(indices.shape)}, (rows, (None,)))


MOE_TOKEN_PERMUTE = FusedOp(
    OPERATOR,
    ascend=Backend(
        _composed,
        _ascend_unsupported,
        "argsort and gather: the plugin has no mixture-of-experts operators",
    ),
    native=Backend(_native, _native_unsupported, "pf_moe_token_permute"),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(("tokens", "indices", "num_out_tokens"), _sharding_rule),
)
