"""The argument checks of npu_fusion_attention, equivalent to CANN's checks.

Legend: B batch, Sq and Skv queries and keys of one sequence, N heads.
"""

from __future__ import annotations

from itertools import pairwise

import paddle

from .. import contracts, masks
from ..masks.modes import SparseMode
from ..ops.arguments import check_ints, check_tensor, dtype_name
from ..ops.attention.call import check_tensors
from ..ops.attention.mask_contract import COMPRESSED_MODES, DENSE_MODES, VARLEN_MODES

OPERATOR = "npu_fusion_attention"


def _refuse(key: str, received: str):
    contracts.refuse(f"attention.{key}", OPERATOR, received)


def lengths_of(layout: str, query_ends, key_ends) -> tuple:
    """The sequence lengths, [2, 5, 9, 0, 0] -> (2, 3, 4), or (None, None). Raises ContractError."""
    if layout != "TND":
        if query_ends is not None or key_ends is not None:
            raise ValueError(
                f"{OPERATOR}: actual_seq_qlen and actual_seq_kvlen require layout TND; the layout is "
                f"{layout}."
            )
        return None, None
    query_ends, key_ends = (
        None if ends is None else list(check_ints(OPERATOR, name, ends))
        for name, ends in (("actual_seq_qlen", query_ends), ("actual_seq_kvlen", key_ends))
    )
    received = f"actual_seq_qlen is {query_ends} and actual_seq_kvlen is {key_ends}"
    if not query_ends or not key_ends:
        _refuse("lengths", received)
    if len(query_ends) != len(key_ends):
        _refuse("lengths_count", received)
    if len(query_ends) > contracts.limit("attention.sequences"):
        _refuse("sequences", f"actual_seq_qlen has {len(query_ends)} sequences")
    while len(query_ends) > 1 and query_ends[-1] == key_ends[-1] == 0:  # padding
        query_ends.pop()
        key_ends.pop()
    lengths = tuple(
        tuple(end - start for start, end in pairwise([0, *ends])) for ends in (query_ends, key_ends)
    )
    if min(map(min, lengths)) < 0:
        _refuse("lengths_order", received)
    return lengths


def check(
    query, key, value, head_num, layout, pse, mask, keep_prob, inner_precise, chosen: SparseMode, ends
) -> masks.Shapes:
    """Checks all arguments and returns the sizes of the call.

    Raises ContractError for a violated rule of CANN, ValueError for other invalid arguments.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(OPERATOR, name, tensor)
        if dtype_name(tensor) not in contracts.dtypes("attention.dtype"):
            _refuse("dtype", f"{name} is {dtype_name(tensor)}")
    if not 0 < keep_prob <= 1:
        _refuse("keep_prob", f"keep_prob is {keep_prob}")
    if inner_precise not in (0, 1, 2):
        _refuse("inner_precise", f"inner_precise is {inner_precise}")
    check_tensors(query, key, value, pse, layout, 1 - keep_prob, OPERATOR)
    mode = chosen.sparse_mode
    if layout == "TND":
        _check_tokens(query, key, ends)
    if layout == "TND" and mode not in VARLEN_MODES:
        _refuse("varlen_mode", f"sparse_mode is {mode!r} in layout TND")
    if layout != "TND" and mode not in DENSE_MODES:
        _refuse("dense_mode", f"sparse_mode is {mode!r} in layout {layout}")
    _check_pse(pse, layout, mode, query, key, ends)
    if mask is None and mode != 0:
        _refuse("mask_missing", f"sparse_mode is {mode!r} without atten_mask")
    shapes = masks.shapes_of(layout, query.shape, key.shape, *ends)
    if mask is None:
        return shapes
    _check_mask(mask, mode, layout, shapes, head_num)
    if mode in (5, 6):
        _check_prefix(chosen, layout, shapes)
    if layout == "TND":
        _check_varlen_band(chosen, shapes)
    elif shapes.known and shapes.query_len and shapes.key_len and chosen.sequence(*_lens(shapes)).is_empty:
        band = f"pre_tockens {chosen.pre_tokens} and next_tockens {chosen.next_tokens} mask every score of"
        rule = "band_top_left" if mode == 0 else "band_bottom_right"
        _refuse(rule, f"{band} {shapes.query_len} queries and {shapes.key_len} keys")
    return shapes


def _check_tokens(query, key, ends) -> None:
    """Checks that the sequences cover all tokens and that every query has keys."""
    names = ("actual_seq_qlen", "actual_seq_kvlen")
    for name, side, tensor in zip(names, ends, (query, key), strict=True):
        if tensor.shape[0] not in (-1, side[-1]):
            _refuse("lengths_total", f"{name} is {side[1:]} for {tensor.shape[0]} tokens")
    for (start, end), (key_start, key_end) in zip(*map(pairwise, ends), strict=True):
        if end > start and key_end == key_start:
            _refuse("no_keys", f"a sequence with {end - start} queries and no keys")


def _lens(shapes) -> tuple[int, int]:
    return shapes.query_len, shapes.key_len


def _check_pse(pse, layout, mode, query, key, ends) -> None:
    if pse is None:
        return
    rows = contracts.limit("attention.pse_rows")
    if layout == "TND":
        if mode in (7, 8):
            _refuse("pse_mode", f"pse is passed in mode {mode}")
        if any(start == end for side in ends for start, end in pairwise(side)):
            _refuse("pse_empty_sequence", f"pse is passed with cumulative lengths {ends[0]} and {ends[1]}")
        if len(pse.shape) not in (1, 4):
            _refuse("pse_varlen", f"pse has shape {list(pse.shape)}")
        raise ValueError(f"{OPERATOR}: no backend supports pse in layout TND. Use another layout.")
    shapes = masks.shapes_of(layout, query.shape, key.shape)
    if len(pse.shape) == 4 and pse.shape[2] == rows != shapes.query_len:
        if not (shapes.query_len == shapes.key_len > rows and mode in (0, 2, 3)):
            _refuse(
                "pse_rows", f"pse has shape {list(pse.shape)} for {shapes.query_len} queries in mode {mode}"
            )
        raise ValueError(f"{OPERATOR}: no backend supports a compressed pse ({rows} rows). Pass all rows.")


def _check_mask(mask, mode, layout, shapes, head_num) -> None:
    check_tensor(OPERATOR, "atten_mask", mask, (*contracts.DTYPES["attention.mask_dtype"], "float32"))
    if dtype_name(mask) not in contracts.dtypes("attention.mask_dtype"):
        _refuse("mask_dtype", f"atten_mask is {dtype_name(mask)}")
    shape, size = list(mask.shape), contracts.limit("attention.compressed_mask")
    received = f"atten_mask has shape {shape} in mode {mode}"
    if mode in COMPRESSED_MODES or mode == 6:
        rule = "mask_shape_prefix_compressed" if mode == 6 else "mask_shape_compressed"
        rows = contracts.limit("attention.compressed_prefix_mask_rows") if mode == 6 else size
        if shape != [rows, size]:
            _refuse(rule, received)
        if isinstance(mask, paddle.Tensor):
            expected = masks.compressed(prefix=mode == 6)
            same = mask is expected or bool((mask.astype("bool") == expected.to(mask.place)).all())
            if not same:
                _refuse(rule, f"{received} and differs from the required mask")
        return
    if layout == "TND":
        longest = [max(shapes.query_lens, default=0), max(shapes.key_lens, default=0)]
        if shape != longest:
            _refuse(
                "mask_shape_varlen",
                f"{received} for a longest Sq of {longest[0]} and a longest Skv of {longest[1]}",
            )
        return
    b, q, k = shapes.batch, shapes.query_len, shapes.key_len
    one_for_each = [[b, head_num, q, k], [b, 1, q, k]]
    if mode == 5 and b != 1 and shape not in one_for_each:
        _refuse("mask_shape_prefix", received)
    if shapes.known and shape not in [*one_for_each, [1, 1, q, k], [q, k]]:
        _refuse("mask_shape", f"{received} for B {b}, N {head_num}, Sq {q} and Skv {k}")


def _check_prefix(chosen, layout, shapes) -> None:
    count = shapes.batch if layout != "TND" else len(shapes.query_lens)
    rule = "attention.sequences_with_prefix" if layout == "TND" else "attention.batch_with_prefix"
    if count is not None and count > contracts.limit(rule):
        _refuse("batch_with_prefix", f"{count} prefixes in layout {layout}")
    if chosen.prefix is None or (count is not None and len(chosen.prefix) != count):
        _refuse("prefix", f"prefix is {chosen.prefix} for {count} batch elements")
    query_lens = shapes.query_lens or (shapes.query_len,) * len(chosen.prefix)
    key_lens = shapes.key_lens or (shapes.key_len,) * len(chosen.prefix)
    for length, q, k in zip(chosen.prefix, query_lens, key_lens, strict=True):
        if q is not None and not max(0, k - q) <= length <= k:
            _refuse("prefix_range", f"a prefix of {length} with {q} queries and {k} keys")


def _check_varlen_band(chosen, shapes) -> None:
    """Ensures an unmasked key for every query, like CheckPretokenAndNexttoken of CANN's tiling."""
    mode, pre, next_ = chosen.sparse_mode, chosen.pre_tokens, chosen.next_tokens
    lens = list(zip(shapes.query_lens, shapes.key_lens, strict=True))
    band = f"pre_tockens {pre} and next_tockens {next_}"
    if mode == 4 and (pre < 0 or pre + next_ < 0):
        _refuse("band_bottom_right", f"{band} in layout TND")
    if mode == 0 and (next_ < 0 or pre + next_ < 0):
        _refuse("band_top_left", f"{band} in layout TND")
    for s, (q, k) in enumerate(lens):
        if q == 0 or k == 0:
            continue
        received = f"sequence {s} has {q} queries and {k} keys"
        is_band = chosen.of_sequence(s, shapes.query_lens).is_band
        if mode == 3 and q > k:
            _refuse("mode3_varlen", received)
        if mode == 7 and is_band and not (pre >= k and q - k <= next_ <= 0):
            _refuse("mode7_last", f"{received}, with {band}")
        if mode == 7 and not is_band and q > k:
            _refuse("mode7_others", received)
        if mode == 8 and is_band and not (pre >= k and next_ >= q - k):
            _refuse("mode8_first", f"{received}, with {band}")
        if mode in (0, 4) and chosen.sequence(q, k).has_fully_masked_row:
            _refuse("hidden_rows", f"{received}, with {band}")
