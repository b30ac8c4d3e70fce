"""The loss of a language model from its last hidden states, without its logits as a whole.

Shapes: ... the tokens in any dimensions ([T] or [B, S]), H hidden, V vocabulary, G blocks of the vocabulary.
"""

from __future__ import annotations

import math

import paddle
import paddle.nn.functional as F
from paddle.autograd import PyLayer

from .. import ascend, native
from ..devices import is_captured
from ..dispatch import Backend, FusedOp
from .arguments import check_one_device, check_shape, check_tensor, dtype_name, no_16_bit_on_cpu

OPERATOR = "linear_cross_entropy"
REDUCTIONS = ("mean", "sum", "none")

# Of fewer logits the backward's fourth product costs less than to keep gradients ready and to scale them.
FEW_LOGITS = 1 << 22

# Fewer tokens at a time would leave a card's matrix units idle.
SMALLEST_CHUNK = 256


def linear_cross_entropy(
    hidden,
    weight,
    labels,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    transpose_weight: bool = False,
):
    """loss[t] = log(sum over v of exp(logits[t, v])) - logits[t, labels[t]],  logits = hidden weight.

    The logits are computed piece by piece; [..., V] is never held. Logits, sums and losses are float32. The
    native backend forms the gradients of a large float32 "mean" or "sum" with the loss, if hidden or weight
    wants one; otherwise the backward computes the logits again.

    Args:
        hidden: [..., H], float32, bfloat16 or float16.
        weight: [H, V] as in paddle.nn.Linear, hidden's dtype. With transpose_weight [V, H], as in an
            embedding that the output layer shares.
        labels: [...], int64, each in [0, V) or ignore_index.
        ignore_index: tokens with this label have loss 0 and gradient 0. An integer of 32 bits.
        reduction: "none" for the losses [...], "sum" for their sum, "mean" for the sum divided by the number
            of tokens that are not ignored (by 1 if there is none: the loss is then 0).
        transpose_weight: whether weight is [V, H].

    Returns:
        float32: [...] or a scalar. Gradients flow to hidden and weight.

    Raises:
        ValueError: for shapes, dtypes, labels and reductions other than these.

    Source: Liger-Kernel's fused linear cross entropy; torch.nn.functional.cross_entropy for "mean" (with a
    negative ignore_index paddle.nn.functional.cross_entropy divides by the number of all tokens).
    """
    check_tensor(OPERATOR, "hidden", hidden)
    check_tensor(OPERATOR, "weight", weight, (dtype_name(hidden),))
    check_tensor(OPERATOR, "labels", labels, ("int64",))
    check_one_device(OPERATOR, hidden=hidden, weight=weight, labels=labels)
    if len(hidden.shape) == 0:
        raise ValueError(f"{OPERATOR}: hidden has no dimension; accepted: [..., H].")
    layouts = ("[V, H]", "[H, V]") if transpose_weight else ("[H, V]", "[V, H]")
    width = weight.shape[1 if transpose_weight else 0] if len(weight.shape) == 2 else None
    if 0 in weight.shape or width not in (hidden.shape[-1], -1):
        raise ValueError(
            f"{OPERATOR}: weight has shape {list(weight.shape)} and hidden {list(hidden.shape)}; accepted: "
            f"hidden [..., H] and weight {layouts[0]}, neither H nor V being 0. "
            f"transpose_weight={not transpose_weight} is for {layouts[1]}."
        )
    check_shape(OPERATOR, "labels", labels, list(hidden.shape)[:-1], "hidden's dimensions before the last")
    if not -(2**31) <= ignore_index < 2**31:
        raise ValueError(f"{OPERATOR}: ignore_index is {ignore_index}; accepted: an integer of 32 bits.")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{OPERATOR}: reduction is {reduction!r}; accepted: {', '.join(REDUCTIONS)}.")
    return LINEAR_CROSS_ENTROPY(hidden, weight, labels, int(ignore_index), bool(transpose_weight), reduction)


def _reduced(losses, labels, ignore_index: int, reduction: str):
    if reduction == "none":
        return losses
    counted = 1.0
    if reduction == "mean":
        counted = paddle.clip((labels != ignore_index).astype(losses.dtype).sum(), min=1.0)
    if not losses.is_dist():
        return losses.sum() / counted if reduction == "mean" else losses.sum()
    # Where the tokens lie on several devices, a product with ones: see ``_over_blocks``.
    row = losses.reshape([1, -1])
    total = paddle.matmul(row, paddle.ones_like(row), transpose_y=True)
    return (total / counted if reduction == "mean" else total).reshape([])


def _vocabulary(weight, transpose_weight: bool) -> int:
    return weight.shape[0 if transpose_weight else 1]


def _check_labels(labels, vocabulary: int, ignore_index: int) -> None:
    """Raises ValueError for a label that is none. The labels of a captured program have no values yet."""
    if is_captured(labels):
        return
    here = labels._local_value() if labels.is_dist() else labels
    wrong = here[(here != ignore_index) & ((here < 0) | (here >= vocabulary))]
    if wrong.shape[0] > 0:
        raise ValueError(
            f"{OPERATOR}: a label is {int(wrong[0])}; accepted: 0 to {vocabulary - 1} (the vocabulary of "
            f"weight) and ignore_index {ignore_index}."
        )


def _composed(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    _check_labels(labels, _vocabulary(weight, transpose_weight), ignore_index)
    losses = _whole_logits(hidden, weight, labels, ignore_index, transpose_weight)
    return _reduced(losses, labels, ignore_index, reduction)


def _whole_logits(hidden, weight, labels, ignore_index, transpose_weight):
    logits = paddle.matmul(hidden, weight, transpose_y=transpose_weight)
    wide = logits if dtype_name(logits) == "float64" else logits.astype("float32")
    losses = F.cross_entropy(wide, labels.unsqueeze(-1), ignore_index=ignore_index, reduction="none")
    return losses.squeeze(-1)


def _composed_refuses(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    return no_16_bit_on_cpu(hidden, weight)


def _native(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    if reduction != "none" and _gradients_come_with_the_loss(hidden, weight):
        return _LossAndGradients.apply(hidden, weight, labels, ignore_index, transpose_weight, reduction)
    return _reduced(
        _losses(hidden, weight, labels, ignore_index, transpose_weight), labels, ignore_index, reduction
    )


def _gradients_come_with_the_loss(hidden, weight) -> bool:
    """Three products then do instead of four. In 16 bits weight's gradient would need large float32 sums."""
    if is_captured(hidden) or hidden.is_dist() or weight.is_dist() or dtype_name(hidden) != "float32":
        return False
    if hidden.size // hidden.shape[-1] * (weight.size // hidden.shape[-1]) < FEW_LOGITS:
        return False
    return paddle.is_grad_enabled() and not (hidden.stop_gradient and weight.stop_gradient)


class _LossAndGradients(PyLayer):
    """The loss; its gradients are computed with it and scaled when the loss's own gradient comes."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, ignore_index, transpose_weight, reduction):
        ctx.save_for_backward(hidden, weight, labels)
        wanted = (not hidden.stop_gradient, not weight.stop_gradient)
        ctx.options = (ignore_index, transpose_weight, reduction == "mean", *wanted)
        losses, *ctx.gradients = native.call(_WITH_BACKWARD, hidden, weight, labels, *ctx.options)
        return _reduced(losses, labels, ignore_index, reduction)

    @staticmethod
    def backward(ctx, dloss):
        # Given away, not copied: of a graph that is kept, a second backward computes them again.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            _, *gradients = native.call(_WITH_BACKWARD, *ctx.saved_tensor(), *ctx.options)
        scale, wanted = float(dloss), ctx.options[-2:]
        if scale != 1.0:
            gradients = [gradient.scale_(scale) for gradient in gradients]
        return (*(gradient if keep else None for gradient, keep in zip(gradients, wanted, strict=True)), None)


_WITH_BACKWARD = "pf_linear_cross_entropy_with_backward"


def _losses(hidden, weight, labels, ignore_index, transpose_weight):
    """The kernel gives a logarithm and a target for each block of the vocabulary; Paddle joins them.

    The blocks are the parts of a vocabulary that is split over devices, so that only the joining
    communicates: three numbers for each token.
    """
    vocabulary = _vocabulary(weight, transpose_weight)
    blocks = _blocks(weight, 0 if transpose_weight else 1)
    first_ids = paddle.arange(blocks, dtype="int64") * (vocabulary // blocks)
    if not is_captured(labels):
        first_ids = first_ids.to(labels.place)  # which need not be the default device
    lse, target = native.call(
        "pf_linear_cross_entropy",
        hidden,
        weight,
        labels,
        first_ids,
        ignore_index,
        vocabulary,
        transpose_weight,
        native.wants_gradient(hidden),
        native.wants_gradient(weight),
    )
    # Not paddle.logsumexp: along a dimension that is split over devices it adds up the devices' logarithms.
    largest = lse.detach().max(-1, keepdim=True)
    total = largest.squeeze(-1) + _over_blocks(paddle.exp(lse - largest), weight).log()
    counts = (labels != ignore_index).astype("float32")
    return (total - _over_blocks(target, weight)) * counts


def _over_blocks(values, weight):
    """The sum over the last dimension, of one number for each block of the vocabulary: [..., G] -> [...].

    Where the blocks lie on several devices it is a product with ones: the gradient of Paddle's sum puts the
    values together first, although it needs their sizes only.
    """
    blocks = values.shape[-1]
    if not weight.is_dist() or blocks == 1:
        return values.sum(-1)
    return paddle.matmul(values, paddle.ones([blocks, 1], values.dtype)).squeeze(-1)


def _blocks(weight, dim: int) -> int:
    """The number of equal parts into which a mesh splits weight's dimension ``dim``; 1 if it is whole."""
    if not weight.is_dist():
        return 1
    mesh, blocks = weight.process_mesh, 1
    for size, placement in zip(mesh.shape, weight.placements, strict=True):
        blocks *= size if placement.is_shard(dim) else 1
    return blocks if weight.shape[dim] % blocks == 0 else 1


def _native_refuses(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    if dtype_name(hidden) == "float64":
        return "the host kernels compute in float32, bfloat16 and float16, not in float64"
    return native.refuses(hidden, weight, labels)


def _native_mode(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    if reduction != "none" and _gradients_come_with_the_loss(hidden, weight):
        return _WITH_BACKWARD
    return "pf_linear_cross_entropy"


class _Chunks(PyLayer):
    """Paddle's operators on a few tokens at a time; the backward computes each chunk's logits again."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, ignore_index, transpose_weight):
        ctx.save_for_backward(hidden, weight, labels)
        ctx.options = (ignore_index, transpose_weight)
        return paddle.concat(
            [
                _whole_logits(hidden[rows], weight, labels[rows], ignore_index, transpose_weight)
                for rows in _chunks(hidden, _vocabulary(weight, transpose_weight))
            ]
        )

    @staticmethod
    def backward(ctx, dlosses):
        hidden, weight, labels = ctx.saved_tensor()
        ignore_index, transpose_weight = ctx.options
        dhidden, dweight = [], paddle.zeros(weight.shape, "float32")
        for rows in _chunks(hidden, _vocabulary(weight, transpose_weight)):
            logits = paddle.matmul(hidden[rows], weight, transpose_y=transpose_weight).astype("float32")
            options = (False, True, True, ignore_index, -1)  # hard labels, of logits, stable
            ids = labels[rows].unsqueeze(-1)
            softmax, _ = paddle._C_ops.cross_entropy_with_softmax(logits, ids, *options)
            dlogits = paddle._C_ops.cross_entropy_with_softmax_grad_(
                ids, softmax, dlosses[rows].unsqueeze(-1), *options
            ).astype(hidden.dtype)
            dhidden.append(paddle.matmul(dlogits, weight, transpose_y=not transpose_weight))
            pair = (dlogits, hidden[rows]) if transpose_weight else (hidden[rows], dlogits)
            dweight += paddle.matmul(*pair, transpose_x=True).astype("float32")
        return paddle.concat(dhidden), dweight.astype(weight.dtype), None


def _chunks(hidden, vocabulary: int) -> list[slice]:
    """Consecutive ranges of the tokens, at least one range."""
    tokens, size = hidden.shape[0], _chunk(hidden, vocabulary)
    return [slice(begin, begin + size) for begin in range(0, max(tokens, 1), size)]


def _chunk(hidden, vocabulary: int) -> int:
    """So many tokens that their logits are about as large as hidden, which is there anyway."""
    return max(SMALLEST_CHUNK, math.prod(hidden.shape) // vocabulary)


def _ascend(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    _check_labels(labels, _vocabulary(weight, transpose_weight), ignore_index)
    rows = hidden.reshape([-1, hidden.shape[-1]])
    losses = _Chunks.apply(rows, weight, labels.reshape([-1]), ignore_index, transpose_weight)
    return _reduced(losses.reshape(labels.shape), labels, ignore_index, reduction)


def _ascend_refuses(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    if is_captured(hidden):
        return "the chunks are made in Python, which a captured program does not hold"
    if hidden.is_dist() or weight.is_dist():
        return "the chunks are cut from one device's tensors, and these are split over devices"
    if dtype_name(hidden) == "float64":
        return "a card leaves float64 to its AICPU"
    return ascend.refuses(hidden, weight, labels)


def _ascend_mode(hidden, weight, labels, ignore_index, transpose_weight, reduction):
    tokens = _chunk(hidden, _vocabulary(weight, transpose_weight))
    return f"matmul and cross_entropy_with_softmax on {tokens} tokens at a time"


LINEAR_CROSS_ENTROPY = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_refuses, _ascend_mode),
    native=Backend(_native, _native_refuses, _native_mode),
    composed=Backend(_composed, _composed_refuses),
)
