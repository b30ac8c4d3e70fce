"""Attention with flash_attention_npu of paddle-custom-npu, in each of its released signatures.

The operator supports only CANN's mode 0: no mask, a causal mask from the top left, or a full mask with a band
of 65536 tokens. Its scale is always 1 / sqrt(D). It requires equal head sizes of key and value, so a smaller
value is padded with zeros and the result is sliced.

Source: PaddleCustomDevice backends/npu/custom_op/fused_attention_npu.cc. Legend: Sq and Skv queries and keys
of one sequence, T tokens, D and Dv head sizes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import paddle
import paddle.nn.functional as F

from paddle_fused import ascend, contracts
from paddle_fused.devices import is_captured
from paddle_fused.masks.explain import computed_fraction
from paddle_fused.masks.row_indices import RowIndices
from paddle_fused.masks.sequences import Sequence
from paddle_fused.masks.tensors import hidden_tensor
from paddle_fused.masks.types import Band, Mask

from ..arguments import dtype_name
from . import tiles
from .call import AttentionCall, full_mask, once_per_call
from .layout import as_bsnd, from_bsnd, with_heads, without_heads
from .packing import constant, packed, unpacked

PLUGIN = "flash_attention_npu"


class _Request(NamedTuple):
    """The operator's arguments for the mask."""

    varlen: bool
    causal: bool = False
    mask: Mask | None = None
    mask_shape: tuple[int, int] | None = None
    is_triangle: bool = False  # the mask covers all keys after the query: skip those blocks
    tiled: bool = False  # one call per tile of queries, each with its own mask


def run(query, key, value, bias, call: AttentionCall):
    heads, layout = call.heads, call.layout
    missing = heads.head_dim - heads.value_dim
    if not missing:
        return _run(query, key, value, call)
    value = with_heads(value, layout, heads.key)
    value = F.pad(value, [0] * (2 * value.ndim - 1) + [missing])
    out, *others = _run(query, key, without_heads(value, layout), call)
    out = with_heads(out, layout, heads.query)[..., : heads.value_dim]
    return without_heads(out, layout), *others


def _run(query, key, value, call: AttentionCall):
    request, heads, layout = _request(call), call.heads, call.layout
    if request.tiled:
        return _run_tiles(query, key, value, call)
    factor = _query_factor(call)
    query = query if factor == 1 else query * factor
    if layout == "TND":
        q, k, v = (query, key, value) if request.varlen else (x.unsqueeze(0) for x in (query, key, value))
    else:
        tensors = ((query, heads.query), (key, heads.key), (value, heads.key))
        q, k, v = (packed(x, n, call) if request.varlen else as_bsnd(x, layout, n) for x, n in tensors)
    mask = None if request.mask is None else _mask_tensor(request, call)
    flags = (
        0.0,
        request.causal,
        True,
        True,
        request.is_triangle,
    )  # dropout, ..., return_softmax, is_test, ...
    out, softmax_max, softmax_sum, *_ = ascend.call(
        PLUGIN, q, k, v, None, mask, *_form_arguments(call, request, flags)
    )
    if layout == "TND":
        out = out if request.varlen else out.squeeze(0)
    else:
        if request.varlen:
            out = unpacked(out, call).reshape(
                [call.shapes.batch, call.shapes.query_len, heads.query, heads.head_dim]
            )
        out = from_bsnd(out, layout)
    if not call.returns_statistics:  # in varlen, their shape differs from the operator's declaration
        softmax_max = softmax_sum = None
    return out, softmax_max, softmax_sum, None


def _run_tiles(query, key, value, call: AttentionCall):
    factor, heads = _query_factor(call), call.heads
    tensors = (query, heads.query), (key, heads.key), (value, heads.key)
    q, k, v = (as_bsnd(x, call.layout, n) for x, n in tensors)

    def attend_tile(q, k, v, hidden):
        q = q if factor == 1 else q * factor
        # The tile's mask is complete: dropout, causal, return_softmax, is_test, triangle.
        arguments = _form_arguments(call, _Request(False), (0.0, False, True, True, False))
        return ascend.call(PLUGIN, q, k, v, None, hidden, *arguments)[:3]

    out, softmax_max, softmax_sum = tiles.attend(q, k, v, tiles.Tiles.of(call), attend_tile)
    if not call.returns_statistics:
        softmax_max = softmax_sum = None
    return from_bsnd(out, call.layout), softmax_max, softmax_sum, None


def mode(query, key, value, bias, call: AttentionCall) -> str:
    request = _request(call)
    pads = "" if call.heads.value_dim == call.heads.head_dim else ", value padded"
    if request.tiled:
        count = len(tiles.Tiles.of(call).spans)
        return f"{PLUGIN}, row indices in {count} tile{'s' * (count != 1)} of queries{pads}"
    kind = "causal" if request.causal else "no mask" if request.mask is None else "full mask"
    return f"{PLUGIN}, {kind}{', varlen' if request.varlen else ''}{pads}"


def computed(query, key, value, bias, call: AttentionCall) -> float:
    """The fraction of the scores computed. The operator can skip only the blocks after the query."""
    request, shapes = _request(call), call.shapes
    if request.tiled:
        return tiles.Tiles.of(call).computed
    high = 0 if request.causal or request.is_triangle else None
    whole = (Sequence(shapes.query_len, shapes.key_len),)
    sequences = call.plan.sequences if request.varlen else whole
    sequences = tuple(replace(s, low=None, high=high) for s in sequences)
    plan = replace(call.plan, packed=request.varlen, sequences=sequences, prefix=None)
    return computed_fraction(plan, shapes)


def unsupported_reason(query, key, value, bias, call: AttentionCall) -> str | None:
    return (
        ascend.unsupported_reason(query, key, value, bias, operators=(PLUGIN,))
        or _unsupported_form()
        or _unsupported_tensors(query, bias, call)
        or _unsupported_scale(call)
        or _unsupported_mask(query, call)
        or _unsupported_statistics(query, call)
    )


def _unsupported_tensors(query, bias, call) -> str | None:
    if dtype_name(query) not in contracts.dtypes("attention.plugin_dtype"):
        return contracts.reason("attention.plugin_dtype", PLUGIN, f"query is {dtype_name(query)}")
    if bias is not None:
        return f"{PLUGIN} does not support a position bias"
    if call.dropout > 0:
        return (
            f"{PLUGIN} applies dropout only in its backward pass, not in its forward pass, so gradients "
            "would be wrong"
        )
    return None


def _unsupported_scale(call) -> str | None:
    if _query_factor(call) is not None:
        return None
    return (
        f"{PLUGIN} supports only the scale 1 / sqrt(D); {call.scale:g} differs by a factor that is not a "
        "power of two, which cannot be applied to the query exactly"
    )


def _unsupported_mask(query, call) -> str | None:
    if isinstance(call.mask, RowIndices) and is_captured(query) and _request(call).tiled:
        return f"{PLUGIN} computes row indices in tiles of queries, which captured programs do not support"
    if call.plan.zero_rows and not isinstance(call.mask, RowIndices):
        return f"{PLUGIN} does not support fully masked rows"
    if is_captured(query) and not (call.shapes.known and (call.plan.sequences or not call.plan.packed)):
        return f"{PLUGIN} requires lengths that are known in a captured program"
    request = _request(call)
    if request is None and form() == "v10" and call.layout == "TND":
        return f"{PLUGIN} of the installed plugin has no varlen form"
    if request is None:
        return f"{PLUGIN} shares one mask [longest Sq, longest Skv] among sequences, but theirs differ"
    longest = max((max(s.query_len, s.key_len) for s in call.plan.sequences), default=0)
    if (request.causal or request.mask is not None or request.tiled) and longest - 1 > contracts.limit(
        "attention.band"
    ):
        return (
            f"{PLUGIN} limits masked attention to {contracts.limit('attention.band')} tokens before and "
            "after the query"
        )
    return None


def _unsupported_statistics(query, call) -> str | None:
    if not call.returns_statistics:
        return None
    request = _request(call)
    if request.varlen:
        return (
            f"{PLUGIN} returns statistics of shape [T, N, 8] that hold [N, Sq, 8] of one sequence after "
            "another"
        )
    if is_captured(query):
        return (
            f"{PLUGIN} declares its statistics with the shape of key and value, and captured programs use "
            "the declaration"
        )
    return None


def form() -> str | None:
    """The released signature of the operator, "tensor13" or "v10", or None."""
    inputs, attributes = ascend.signature(PLUGIN)
    if "is_varlen" in attributes:
        return "tensor13" if len(inputs) == 7 else None
    return "v10" if "is_triangle_upper_mask" in attributes else None


def _unsupported_form() -> str | None:
    if form() is not None:
        return None
    return (
        f"{PLUGIN} of the installed plugin has neither of the two released signatures: "
        f"{ascend.signature(PLUGIN)}"
    )


def _form_arguments(call, request: _Request, flags) -> tuple:
    if form() == "v10":
        return flags
    lengths = None, None
    if request.varlen:
        lengths = [
            constant(call.plan, name, list(accumulate(lens)), "int32")
            for name, lens in (("query ends", call.plan.query_lens), ("key ends", call.plan.key_lens))
        ]
    return (*lengths, *flags, request.varlen)


def _query_factor(call) -> float | None:
    return query_factor(call.scale, call.heads.head_dim)


def query_factor(scale: float, head_dim: int) -> float | None:
    """The factor on the query that replaces another scale, or None. It is a power of two, so it is exact."""
    factor = scale * math.sqrt(head_dim)
    if not factor:
        return None
    power = math.copysign(2.0 ** round(math.log2(abs(factor))), factor)
    return power if abs(factor / power - 1) < 2.0**-24 else None  # equal in float32, the operator's precision


@once_per_call
def _request(call: AttentionCall) -> _Request | None:
    """The operator's arguments for this mask, or None if the operator cannot express it."""
    request, has_rows = _one_call(call), isinstance(call.mask, RowIndices)
    if request is not None:
        is_small = request.mask is None or max(request.mask_shape) <= tiles.ROWS
        if is_small and (request.mask is None or request.varlen or not has_rows):
            return request
    if has_rows or (paddle.in_dynamic_mode() and tiles.rows_of_call(call) is not None):
        return _Request(False, tiled=True)
    return request


def _one_call(call: AttentionCall) -> _Request | None:
    plan, shapes = call.plan, call.shapes
    active = [s for s in plan.sequences if s.query_len]
    if plan.packed and form() != "v10":
        if plan.kind == "no mask":
            return _Request(True)
        if plan.full is None and all(s.acts_like(None, 0) for s in active):
            return _Request(True, causal=True)
        return _shared_mask(plan, active)
    if call.layout == "TND" and plan.packed:
        return None
    shape = shapes.query_len, shapes.key_len
    if call.mask is None or (plan.kind == "no mask" and not plan.packed):
        return _Request(False)
    if not plan.packed and plan.kind == "causal" and shape[0] == shape[1]:
        return _Request(False, causal=True)
    mask = call.mask if plan.packed or plan.full is None else plan.full
    return _Request(False, False, mask, shape, _hides_what_follows(mask, shape))


def _shared_mask(plan, active) -> _Request | None:
    bands = {(s.low, s.high) for s in active}
    if len(bands) > 1:
        return None
    if plan.full is not None:
        return _Request(
            True, False, plan.full, plan.full_shape, _hides_what_follows(plan.full, plan.full_shape)
        )
    low, high = min(bands, default=(None, None))
    shape = max((s.query_len for s in active), default=0), max(plan.key_lens, default=0)
    mask = Band(None if low is None else -low, high, "top_left")
    return _Request(True, False, mask, shape, _hides_what_follows(mask, shape))


def _hides_what_follows(mask: Mask, shape) -> bool:
    """Whether a band masks every key j > i, so that next_tokens = 0 skips these keys."""
    for part in mask.parts:
        if isinstance(part, Band) and part.right is not None:
            start = shape[1] - shape[0] if part.align == "bottom_right" else 0
            if start + part.right <= 0:
                return True
    return False


def _mask_tensor(request: _Request, call):
    """[Sq, Skv], [1, 1, Sq, Skv] or [B, 1 or N, Sq, Skv]; in varlen [longest Sq, longest Skv]."""
    if request.mask is call.plan.full:
        hidden = full_mask(call)
    else:
        hidden = hidden_tensor(request.mask, request.mask_shape)
    if hidden.ndim == 4 and hidden.shape[0] != call.shapes.batch and hidden.shape[1] != 1:
        return hidden.expand([call.shapes.batch, *hidden.shape[1:]])
    return hidden
