"""paddle.nn.functional.flashmask_attention on the backends of flash_attention.

Legend: B batch, Sq queries, Skv keys, N and Nkv heads of query and of key and value, D head size.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import paddle

from paddle_fused import masks
from paddle_fused.devices import default_device_of, is_captured
from paddle_fused.masks.row_indices import RowIndices, check_form, hidden_in_graph
from paddle_fused.sharding.local_map import is_split

from ..arguments import check_int, check_is_tensor, dtype_name
from ..attention.layout import check_rank
from ..attention.op import OPERATOR as ATTENTION
from ..attention.op import attend

OPERATOR = "flashmask_attention"


def flashmask_attention(
    query,
    key,
    value,
    startend_row_indices=None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | tuple | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset=None,
    rng_name: str = "",
    training: bool = True,
    name: str | None = None,
    softmax_scale: float | None = None,
    block_mask=None,
):
    """out = dropout(softmax(Q K^T / sqrt(D) over the keys that the row indices do not mask)) V.

    Has the arguments of ``paddle.nn.functional.flashmask_attention``, in its order and with its defaults.

    Args:
        query, key, value: float32, bfloat16 or float16 [B, S, N, D], [B, S, Nkv, D]; N is a multiple of Nkv.
        startend_row_indices: int32 [B, 1, Nkv or N, Skv, columns], the masked query rows of each key.
            With causal, 1 column (start, up to the last row) or 2 (start, end), in addition to the keys after
            the diagonal, which ends at the bottom right. Otherwise 2 (a start, up to the last row, and an
            end, from row 0 on) or 4 (two ranges). None: only ``causal``.
        dropout: the dropout probability, ignored unless ``training``.
        window_size: replaces indices: keys from i - w to i with causal, otherwise to i + w; or both bounds.
        return_softmax_lse: also return log(sum(exp(scores))), float32 [B, N, Sq], without gradient; -inf for
            fully masked rows.
        return_seed_offset: also return dropout's seed and offset, int64 [2]; zeros without dropout.
        fixed_seed_offset: int64 [2], repeats the dropout of the call that returned it.
        rng_name: draws the seed from the generator registered under this name in paddle.framework.random.
        softmax_scale: default 1 / sqrt(D).
        name, block_mask: accepted only as None.

    Fully masked rows give zeros and have no gradient. Every call reads the indices, which synchronizes with
    the device; equal indices share the compiled mask. ``masks.row_indices`` reads them once for many calls of
    `flash_attention`. If the indices are inputs of a captured program, it computes a full mask from them.

    Returns:
        out [B, Sq, N, D], or a list of out and the requested results.

    Raises:
        ContractError or ValueError: for violated rules of `flash_attention`, under the name of this function.
        ValueError: for other forms of indices.
    """
    unsupported = {"name": name, "block_mask": block_mask}
    unsupported = [argument for argument, setting in unsupported.items() if setting is not None]
    if unsupported:
        raise ValueError(
            f"{OPERATOR}: received {', '.join(unsupported)}, which no backend supports. Omit it."
        )
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        check_is_tensor(OPERATOR, argument, tensor)
    check_rank(ATTENTION, "BSND", {"query": query.shape, "key": key.shape, "value": value.shape})
    drops = training and dropout > 0
    seed = _seed(query, fixed_seed_offset, rng_name) if drops else None
    if window_size is not None:
        mask = _window(query, key, startend_row_indices, window_size, causal)
    else:
        mask = _mask(query, key, startend_row_indices, causal)
    out, row_max, row_sum, seed_offset = attend(
        query,
        key,
        value,
        mask,
        bias=None,
        dropout=dropout if training else 0.0,
        scale=softmax_scale,
        layout="BSND",
        num_heads=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        returns_statistics=return_softmax_lse,
        seed=seed,
    )
    results = [out]
    with default_device_of(query):
        if return_softmax_lse:
            results.append(_log_sum_exp(row_max, row_sum, mask, query))
        if return_seed_offset:
            results.append(paddle.zeros([2], "int64") if seed_offset is None or not drops else seed_offset)
    return results if len(results) > 1 else out


def _mask(query, key, indices, causal: bool):
    query_len, key_len = query.shape[1], key.shape[1]
    if indices is None and (not causal or query_len == key_len or -1 in (query_len, key_len)):
        return masks.causal() if causal else None
    if indices is None:
        return _rows_of_window(query_len, key_len, None, 0)
    check_is_tensor(OPERATOR, "startend_row_indices", indices)
    check_form(OPERATOR, "startend_row_indices", indices, causal)
    _check_shape(query, key, indices)
    if is_captured(indices):
        return _in_graph(query, key, indices, causal)
    if is_split(indices):
        raise ValueError(
            f"{OPERATOR}: startend_row_indices is a distributed tensor; accepted: a local tensor. "
            "Pass its _local_value()."
        )
    mask = masks.row_indices(indices, causal)
    heads = query.shape[2]
    if mask.heads in (1, heads) or heads == 0 or heads % mask.heads:  # attend rejects the last two
        return mask
    return _of_query_heads(mask, heads)


def _check_shape(query, key, indices) -> None:
    batch, heads, keys, _ = indices.shape
    expected = key.shape[0], key.shape[1]
    fits = all(-1 in pair or pair[0] == pair[1] for pair in zip((batch, keys), expected, strict=True))
    if not fits or heads not in (1, key.shape[2], query.shape[2]):
        accepted = sorted({1, key.shape[2], query.shape[2]})
        raise ValueError(
            f"{OPERATOR}: startend_row_indices has shape {list(indices.shape)}; accepted: [{expected[0]}, "
            f"{' or '.join(map(str, accepted))}, {expected[1]}, columns], for a key of shape "
            f"{list(key.shape)} and {query.shape[2]} query heads."
        )


@lru_cache(maxsize=16)
def _of_query_heads(mask: RowIndices, heads: int) -> RowIndices:
    """The rows of each key head, repeated for its query heads."""
    return RowIndices(mask.indices.repeat(heads // mask.heads, 1), mask.causal)


def _window(query, key, indices, window_size, causal: bool):
    sizes = window_size if isinstance(window_size, (tuple, list)) else (window_size, window_size)
    left, right = (check_int(OPERATOR, "window_size", size) for size in (*sizes, *sizes[-1:])[:2])
    if indices is not None:
        raise ValueError(
            f"{OPERATOR}: received window_size and startend_row_indices; accepted: one of them. Mask keys "
            "outside the window with the indices."
        )
    if query.shape[1] != key.shape[1] or min(left, right) < 0:
        raise ValueError(
            f"{OPERATOR}: window_size is {window_size} for {query.shape[1]} queries and {key.shape[1]} keys; "
            "accepted: non-negative numbers of keys, and equal numbers of queries and keys."
        )
    right = 0 if causal else right
    return (
        masks.band(left, right) if query.shape[1] < 0 else _rows_of_window(*query.shape[1:2] * 2, left, right)
    )


@lru_cache(maxsize=16)
def _rows_of_window(query_len: int, key_len: int, left: int | None, right: int) -> RowIndices:
    """The rows of a band, without materializing an Sq x Skv tensor."""
    j = np.arange(key_len, dtype=np.int32) - (key_len - query_len)
    after = np.full_like(j, query_len) if left is None else np.clip(j + left + 1, 0, query_len)
    columns = [after] if right == 0 else [after, np.clip(j - right, 0, query_len)]
    return RowIndices(np.stack(columns, -1)[None, None].astype(np.int32), causal=right == 0)


def _in_graph(query, key, indices, causal: bool):
    """The mask of a captured program, where the values of the indices are unknown."""
    query_len, key_len = (
        paddle.shape(x)[1] if x.shape[1] == -1 else paddle.to_tensor(x.shape[1]) for x in (query, key)
    )
    query_len, key_len = (x.astype("int32") for x in (query_len, key_len))
    heads, of_indices = query.shape[2], indices.shape[1]
    if of_indices not in (1, heads):
        indices = paddle.repeat_interleave(indices, heads // of_indices, 1)
    hidden = hidden_in_graph(
        indices,
        causal,
        paddle.arange(0, query_len, 1, dtype="int32"),
        paddle.arange(0, key_len, 1, dtype="int32"),
        key_len - query_len,
    )
    return masks.dense(hidden, invalid_rows=True)


def _seed(query, fixed, rng_name: str):
    """The caller's seed and offset, int64 [2], or None."""
    if fixed is not None:
        check_is_tensor(OPERATOR, "fixed_seed_offset", fixed)
        if list(fixed.shape) != [2] or dtype_name(fixed) != "int64":
            raise ValueError(
                f"{OPERATOR}: fixed_seed_offset is {dtype_name(fixed)} {list(fixed.shape)}; accepted: int64 "
                "[2], as returned with return_seed_offset."
            )
        return fixed
    if not rng_name:
        return None
    try:
        generator = paddle.base.core.get_random_seed_generator(rng_name)
    except RuntimeError:
        raise ValueError(
            f"{OPERATOR}: rng_name is {rng_name!r}, and no generator has this name. Register it with "
            "paddle.framework.random.set_random_seed_generator(name, seed)."
        ) from None
    with default_device_of(query):
        return paddle.to_tensor([generator.random() % (2**31 - 1), 0], dtype="int64")


def _log_sum_exp(row_max, row_sum, mask, query):
    """[B, N, Sq] from the statistics [B, N, Sq, 8]."""
    lse = (row_max + paddle.log(row_sum))[..., 0]
    if isinstance(mask, RowIndices):
        fully_masked = mask.fully_masked(query.shape[1])
        if not fully_masked.any():
            return lse
        fully_masked = paddle.to_tensor(fully_masked)
    elif mask is not None and hasattr(mask, "hidden"):
        fully_masked = mask.hidden.all(-1)
    else:
        return lse
    return paddle.where(fully_masked, paddle.full([], float("-inf"), "float32"), lse)
