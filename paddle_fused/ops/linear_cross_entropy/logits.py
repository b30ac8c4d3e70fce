"""The loss from logits with Paddle's operators, for all tokens at once or in chunks.

Shapes: T tokens, H hidden size, V vocabulary size (or the size of a block).
"""

from __future__ import annotations

import math

import paddle
import paddle.nn.functional as F

from ..arguments import dtype_name, with_gradient
from ..layer import OperatorLayer

# Smaller chunks would leave the matrix units of a card idle.
SMALLEST_CHUNK = 256


def wide(tensor):
    """The tensor in the precision of logits, sums and losses: float32, or float64 for float64."""
    return tensor if dtype_name(tensor) in ("float32", "float64") else tensor.astype("float32")


def product(x, y, **transposed):
    """x y in the precision of ``wide``, regardless of the tensors' dtype and of ``auto_cast``.

    An error in a logit is an error in the loss, and bfloat16 has no number between 29.0 and 29.125.
    """
    x = with_gradient(x, y) if 0 in x.shape else x
    with paddle.amp.auto_cast(enable=False):
        return paddle.matmul(wide(x), wide(y), **transposed)


class Losses:
    """loss[t] = log(sum over v of exp(logits[t, v])) - logits[t, labels[t]], 0 for ``ignore_index``."""

    def __init__(self, ignore_index: int):
        self._ignore_index = ignore_index

    def forward(self, logits, labels):
        ids = labels.unsqueeze(-1)
        losses = F.cross_entropy(logits, ids, ignore_index=self._ignore_index, reduction="none")
        return (losses.squeeze(-1),)

    def backward(self, logits, labels, _found, dlosses):
        options = (False, True, True, self._ignore_index, -1)  # hard labels, of logits, stable
        ids = labels.unsqueeze(-1)
        softmax, _ = paddle._C_ops.cross_entropy_with_softmax(logits, ids, *options)
        return paddle._C_ops.cross_entropy_with_softmax_grad_(ids, softmax, dlosses.unsqueeze(-1), *options)


class Block:
    """The statistics of one block of the vocabulary, which starts at ``first_ids[0]``; float32 [T, 1]:

    lse[t] = log(sum over v of exp(logits[t, v])),  target[t] = logits[t, labels[t] - first_ids[0]], or 0 if
    the label is in another block.
    """

    def __init__(self, first_ids):
        self._first_ids = first_ids

    def forward(self, logits, labels):
        largest = logits.detach().max(-1, keepdim=True)
        lse = largest + (logits - largest).exp().sum(-1, keepdim=True).log()
        own = labels.unsqueeze(-1) - self._first_ids
        inside = paddle.logical_and(own >= 0, own < logits.shape[-1])
        own = paddle.where(inside, own, paddle.zeros_like(own))
        return lse, paddle.take_along_axis(logits, own, -1) * inside.astype(logits.dtype)

    def backward(self, logits, labels, results, dlse, dtarget):
        own = labels.unsqueeze(-1) - self._first_ids
        is_label = paddle.arange(logits.shape[-1], dtype=own.dtype) == own
        return (logits - results[0]).exp() * dlse + is_label.astype(logits.dtype) * dtarget


class Chunks(OperatorLayer):
    """Runs ``kernel``, one of the classes above, in chunks. The backward pass recomputes the logits."""

    operator = "linear_cross_entropy"

    @staticmethod
    def forward(ctx, kernel, hidden, weight, labels, transpose_weight):
        parts, wide_weight = [], wide(weight)
        for rows in _chunks(hidden, weight):
            logits = product(hidden[rows], wide_weight, transpose_y=transpose_weight)
            parts.append(kernel.forward(logits, labels[rows]))
        results = tuple(paddle.concat(list(chunks)) for chunks in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, labels, *results)
        ctx.options = kernel, transpose_weight, not hidden.stop_gradient, not weight.stop_gradient
        return results

    @staticmethod
    def backward(ctx, *dresults):
        hidden, weight, labels, *results = ctx.saved_tensor()
        kernel, transpose_weight, hidden_gradient, weight_gradient = ctx.options
        dhidden, dweight, wide_weight = [], None, wide(weight)
        for rows in _chunks(hidden, weight):
            logits = product(hidden[rows], wide_weight, transpose_y=transpose_weight)
            of_rows = ([result[rows] for result in results], *(result[rows] for result in dresults))
            dlogits = kernel.backward(logits, labels[rows], *of_rows)
            if hidden_gradient:
                of_hidden = product(dlogits, wide_weight, transpose_y=not transpose_weight)
                dhidden.append(of_hidden.astype(hidden.dtype))
            if weight_gradient:
                pair = (dlogits, hidden[rows]) if transpose_weight else (hidden[rows], dlogits)
                of_weight = product(*pair, transpose_x=True)
                # In place, unlike +=, which would allocate a third tensor of weight's size.
                dweight = of_weight if dweight is None else dweight.add_(of_weight)
                del of_weight
        del wide_weight
        return (
            paddle.concat(dhidden) if hidden_gradient else None,
            dweight.astype(weight.dtype) if weight_gradient else None,
            None,
        )


def _chunks(hidden, weight) -> list[slice]:
    """Consecutive ranges of tokens; at least one."""
    tokens, size = hidden.shape[0], chunk(hidden, math.prod(weight.shape) // hidden.shape[-1])
    return [slice(begin, begin + size) for begin in range(0, max(tokens, 1), size)]


def chunk(hidden, vocabulary: int) -> int:
    """The number of tokens whose logits take about as much memory as hidden."""
    return max(SMALLEST_CHUNK, math.prod(hidden.shape) // vocabulary)
