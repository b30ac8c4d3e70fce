"""moe_token_unpermute: sums the expert outputs of each token, in the order of the tokens.

Shapes: T tokens, H hidden size, K experts per token, M rows kept by permute.
"""

from __future__ import annotations

import paddle

from paddle_fused import ascend, contracts, native, paddle_release
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule

from ..arguments import check_contract_dtype, check_one_device, dtype_name, no_16_bit_on_cpu

OPERATOR = "moe_token_unpermute"


def moe_token_unpermute(permuted, sorted_indices, probs=None):
    """out[t] = sum over k < K of probs[t, k] * permuted[sorted_indices[t * K + k]].

    Rows dropped by ``moe_token_permute`` (sorted_indices of M or more) count as zeros. Sums are accumulated
    in float32 and rounded once.

    Args:
        permuted: [M, H], M up to T * K, float32, bfloat16 or float16 (float64: composed only).
        sorted_indices: [T * K] int32 from ``moe_token_permute``, a permutation of 0 to T * K - 1.
        probs: [T, K], float32, bfloat16 or float16, independent of permuted's dtype. None: K is 1 and all
            probabilities are 1.

    Returns:
        [T, H], permuted's dtype. Gradients flow to permuted and probs.

    Raises:
        ValueError: for other shapes and dtypes, K above 512, and sorted_indices that are not a permutation of
            0 to T * K - 1. (Their values are not checked on a card.)

    Source: aclnnMoeTokenUnpermute; torch_npu.npu_moe_token_unpermute.
    """
    check_contract_dtype("moe.dtype", OPERATOR, "permuted", permuted)
    integers = contracts.dtypes("moe.sorted_indices_dtype")
    check_contract_dtype("moe.sorted_indices", OPERATOR, "sorted_indices", sorted_indices, integers)
    if len(sorted_indices.shape) != 1:
        received = f"sorted_indices have shape {list(sorted_indices.shape)}"
        contracts.refuse("moe.sorted_indices", OPERATOR, received)
    entries = sorted_indices.shape[0]
    if len(permuted.shape) != 2 or (entries >= 0 and permuted.shape[0] > entries):
        received = f"permuted has shape {list(permuted.shape)} for {entries} sorted indices"
        contracts.refuse("moe.permuted", OPERATOR, received)
    if probs is not None:
        _check_probs(entries, probs)
    check_one_device(OPERATOR, permuted=permuted, sorted_indices=sorted_indices, probs=probs)
    _check_values(sorted_indices)
    return MOE_TOKEN_UNPERMUTE(permuted, sorted_indices, probs)


def _check_probs(entries: int, probs) -> None:
    check_contract_dtype("moe.dtype", OPERATOR, "probs", probs)
    shape = list(probs.shape)
    fits = len(shape) == 2 and 0 < abs(shape[1]) <= contracts.limit("moe.top_k")
    if not fits or (-1 not in (entries, *shape) and shape[0] * shape[1] != entries):
        contracts.refuse("moe.probs", OPERATOR, f"probs has shape {shape} for {entries} sorted indices")


def _check_values(sorted_indices) -> None:
    entries = sorted_indices.shape[0]
    if not native.can_read(sorted_indices) or entries == 0:
        return
    values = sorted_indices.numpy()
    if values.min() < 0 or values.max() >= entries:
        wrong = values[(values < 0) | (values >= entries)][0]
        contracts.refuse("moe.sorted_indices", OPERATOR, f"sorted_indices has {wrong}, of {entries}")


def _composed(permuted, sorted_indices, probs):
    rows, kept = _restored(permuted, sorted_indices)
    if probs is None:
        return rows
    wide = "float64" if "float64" in (dtype_name(permuted), dtype_name(probs)) else "float32"
    tokens, top_k = probs.shape
    weights = probs.astype(wide).unsqueeze(-1)
    if kept is not None:  # keeps a dropped row 0 even with an infinite weight
        weights = paddle.where(kept.reshape([tokens, top_k, 1]), weights, paddle.zeros_like(weights))
    weighted = rows.astype(wide).reshape([tokens, top_k, rows.shape[-1]]) * weights
    return weighted.sum(1).astype(permuted.dtype)


def _restored(permuted, sorted_indices):
    """permuted[sorted_indices] with zeros for dropped rows, and a mask of the kept rows (None: all)."""
    count, width = permuted.shape
    if count == sorted_indices.shape[0] and count >= 0:
        return paddle.gather(permuted, sorted_indices), None
    if count < 0:  # in a captured program, the number is known only at run time
        count = paddle.shape(permuted)[0]
    end = paddle.full([1], count, "int32")
    with_zeros = paddle_release.concat([permuted, paddle.zeros([1, width], permuted.dtype)])
    return paddle.gather(with_zeros, paddle.minimum(sorted_indices, end)), sorted_indices < end


def _composed_unsupported(permuted, sorted_indices, probs):
    return no_16_bit_on_cpu(permuted, probs)


def _native(permuted, sorted_indices, probs):
    if probs is None:
        return native.call("pf_moe_token_restore", permuted, sorted_indices)[0]
    return native.call("pf_moe_token_unpermute", permuted, sorted_indices, probs)[0]


def _native_mode(permuted, sorted_indices, probs):
    return "pf_moe_token_restore" if probs is None else "pf_moe_token_unpermute"


def _native_unsupported(permuted, sorted_indices, probs):
    if "float64" in (dtype_name(permuted), probs is not None and dtype_name(probs)):
        return "the host kernels do not support float64"
    return native.unsupported_reason(permuted, sorted_indices, probs)


def _ascend_unsupported(permuted, sorted_indices, probs):
    if "float64" in (dtype_name(permuted), probs is not None and dtype_name(probs)):
        return contracts.reason("moe.dtype", OPERATOR, "permuted or probs is float64")
    return ascend.unsupported_reason(permuted, sorted_indices, probs)


def _sharding_rule(permuted, sorted_indices, probs) -> ShardingRule:
    rows = (None, "hidden")
    return ShardingRule({"permuted": rows, "sorted_indices": (None,), "probs": (None, None)}, (rows,))


MOE_TOKEN_UNPERMUTE = FusedOp(
    OPERATOR,
    ascend=Backend(
        _composed,
        _ascend_unsupported,
        "gather, multiply and sum: the plugin has no mixture-of-experts operators",
    ),
    native=Backend(_native, _native_unsupported, _native_mode),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(("permuted", "sorted_indices", "probs"), _sharding_rule),
)
