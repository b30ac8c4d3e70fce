"""Row-index masks on an operator that supports only full masks: one tile of queries at a time.

A tile is a call with some query rows and their unmasked keys. Its mask is computed on the device from the row
indices and freed after the call. The backward pass recomputes the tile and its mask. Memory is O(S), and keys
that are masked for all rows of a tile are skipped.

Legend: B batch, H 1 or N heads, Sq queries, Skv keys, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import paddle

from paddle_fused.masks.row_indices import RowIndices, hidden_in_graph, rows_of

from ..layer import OperatorLayer
from .call import AttentionCall, once_per_call
from .packing import constant

ROWS = 1024  # queries per tile
FEWEST_ROWS = 128
MASK_BYTES = 1 << 25  # a tile has fewer rows if its mask would be larger


@dataclass(frozen=True)
class Tiles:
    """The tiles of a call. ``spans``: (first row, last + 1, first key, last + 1) of each."""

    mask: RowIndices
    call: AttentionCall
    spans: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, call: AttentionCall) -> Tiles:
        """The tiles of a call with row indices, cached in the plan for the calls of other layers."""
        mask = rows_of_call(call)
        if "tiles" not in call.plan.constants:
            call.plan.constants["tiles"] = tuple(_spans(mask, call))
        return cls(mask, call, call.plan.constants["tiles"])

    @property
    def computed(self) -> float:
        """The fraction of the scores in the tiles."""
        total = self.call.shapes.query_len * self.call.shapes.key_len
        return sum((b - a) * (d - c) for a, b, c, d in self.spans) / max(total, 1)

    def hidden(self, span):
        """The mask of a tile, bool [B or 1, H, rows, keys]. Fully masked rows become unmasked."""
        first_row, end_row, first_key, end_key = span
        mask, shapes = self.mask, self.call.shapes
        indices = constant(self.call.plan, "indices", mask.indices, "int32")[:, :, first_key:end_key]
        hidden = hidden_in_graph(
            indices,
            mask.causal,
            paddle.arange(first_row, end_row, dtype="int32"),
            paddle.arange(first_key, end_key, dtype="int32"),
            shapes.key_len - shapes.query_len,
        )
        if self.call.plan.fully_masked is not None:
            fully_masked = constant(self.call.plan, "fully_masked", self.call.plan.fully_masked, "bool")
            sees = paddle.logical_not(fully_masked[:, :, first_row:end_row]).unsqueeze(-1)
            hidden = paddle.logical_and(hidden, sees)
        if mask.heads > 1 and hidden.shape[0] != shapes.batch:
            hidden = hidden.expand([shapes.batch, *hidden.shape[1:]])
        return hidden


@once_per_call
def rows_of_call(call: AttentionCall) -> RowIndices | None:
    """The mask of a call as row indices, or None for other masks."""
    if isinstance(call.mask, RowIndices):
        return call.mask
    if call.mask is None or call.layout == "TND" or not call.shapes.known:
        return None
    return rows_of(call.mask, call.shapes.query_len, call.shapes.key_len)


def _spans(mask: RowIndices, call: AttentionCall):
    query_len, key_len = call.shapes.query_len, call.shapes.key_len
    per_row = len(mask.indices) * mask.heads * key_len
    rows = max(FEWEST_ROWS, min(ROWS, MASK_BYTES // max(per_row, 1)))
    first, end = mask.visible(query_len).transpose(1, 0, 2, 3, 4)
    for start in range(0, query_len, rows):
        stop = min(start + rows, query_len)
        seen = ((first < stop) & (end > start) & (first < end)).any((0, 1, 2)).nonzero()[0]
        yield (start, stop, int(seen[0]), int(seen[-1]) + 1) if len(seen) else (start, stop, 0, 1)


def attend(query, key, value, tiles: Tiles, operator: Callable):
    """out [B, Sq, N, D], softmax_max and softmax_sum [B, N, Sq, 8] of query, key and value [B, S, N, D].

    ``operator(query, key, value, hidden)`` returns the three results for a tile.
    """
    return _Tiled.apply(query, key, value, tiles, operator)


class _Tiled(OperatorLayer):
    operator = "flash_attention"

    @staticmethod
    def forward(ctx, query, key, value, tiles, operator):
        ctx.save_for_backward(query, key, value)
        ctx.tiles, ctx.operator = tiles, operator
        ctx.wanted = [not x.stop_gradient for x in (query, key, value)]
        results = []
        for span in tiles.spans:
            a, b, c, d = span
            results.append(operator(query[:, a:b], key[:, c:d], value[:, c:d], tiles.hidden(span)))
        out, row_max, row_sum = (
            paddle.concat(column, axis)
            for column, axis in zip(zip(*results, strict=True), (1, 2, 2), strict=True)
        )
        ctx.mark_non_differentiable(row_max, row_sum)
        # Before 3.3, paddle.grad crashes when it creates zeros for an output without a gradient.
        ctx.set_materialize_grads(False)
        return out, row_max, row_sum

    @staticmethod
    def backward(ctx, out_grad, *_):
        query, key, value = ctx.saved_tensor()
        query_grads = []
        # Gradients of key and value are summed over tiles in float32, so 16-bit dtypes are rounded once.
        key_grad, value_grad = (paddle.zeros(x.shape, "float32") for x in (key, value))
        for span in ctx.tiles.spans:
            a, b, c, d = span
            inputs = [x.detach() for x in (query[:, a:b], key[:, c:d], value[:, c:d])]
            for x in inputs:
                x.stop_gradient = False
            with paddle.enable_grad():
                out, *_ = ctx.operator(*inputs, ctx.tiles.hidden(span))
            # Not paddle.grad, which cannot run inside another paddle.grad.
            paddle.autograd.backward([out], [out_grad[:, a:b]])
            query_grads.append(inputs[0].grad)
            key_grad[:, c:d] += inputs[1].grad.astype("float32")
            value_grad[:, c:d] += inputs[2].grad.astype("float32")
        gradients = paddle.concat(query_grads, 1), key_grad.astype(key.dtype), value_grad.astype(value.dtype)
        return tuple(g if wanted else None for g, wanted in zip(gradients, ctx.wanted, strict=True))
