"""The loss of a language model from its last hidden states, without materializing the full logits.

Shapes: ... token dimensions ([T] or [B, S]), H hidden size, V vocabulary size, G blocks of the vocabulary.
"""

from __future__ import annotations

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.layers.mpu import mp_ops

from paddle_fused import ascend, native, paddle_release
from paddle_fused.devices import default_device_of, is_captured
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule, is_split, mesh_of, numbered
from paddle_fused.sharding.local_map import placements_of

from ..arguments import check_one_device, check_shape, check_tensor, dtype_name, no_16_bit_on_cpu
from ..layer import OperatorLayer
from . import logits as of_logits

OPERATOR = "linear_cross_entropy"
REDUCTIONS = ("mean", "sum", "none")

# With fewer logits, the fourth matmul of backward costs less than storing and scaling precomputed gradients.
FEW_LOGITS = 1 << 22


def linear_cross_entropy(
    hidden,
    weight,
    labels,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    transpose_weight: bool = False,
    group=None,
):
    """loss[t] = log(sum over v of exp(logits[t, v])) - logits[t, labels[t]],  logits = hidden weight.

    The logits are computed in chunks; [..., V] is never stored. Logits, sums and losses are float32. For a
    large float32 "mean" or "sum" with gradients, the native backend computes the gradients together with the
    loss. Otherwise, the backward pass recomputes the logits.

    Args:
        hidden: [..., H], float32, bfloat16 or float16 (float64: composed only).
        weight: [H, V] as in paddle.nn.Linear, hidden's dtype. With transpose_weight [V, H], as in a
            tied embedding.
        labels: [...], int64, each in [0, V) or ignore_index.
        ignore_index: tokens with this label have loss 0 and gradient 0. A 32-bit integer.
        reduction: "none" for the losses [...], "sum" for their sum, "mean" for the sum divided by the number
            of tokens that are not ignored (by 1 if all are ignored, so the loss is 0).
        transpose_weight: whether weight is [V, H].
        group: a process group (``paddle.distributed.new_group``) that shards the vocabulary. weight is then
            this rank's V / G rows or columns, in rank order. hidden, labels, the losses and hidden's gradient
            are identical on all ranks. Forward and backward are collective.

    Returns:
        float32: [...] or a scalar. Gradients flow to hidden and weight.

    Raises:
        ValueError: for other shapes, dtypes, labels and reductions; before Paddle 3.1 also for zero tokens.

    Source: Liger-Kernel's fused linear cross entropy; torch.nn.functional.cross_entropy for "mean". (With a
    negative ignore_index, paddle.nn.functional.cross_entropy divides by the number of all tokens.)
    """
    check_tensor(OPERATOR, "hidden", hidden)
    check_tensor(OPERATOR, "weight", weight, (dtype_name(hidden),))
    check_tensor(OPERATOR, "labels", labels, ("int64",))
    check_one_device(OPERATOR, hidden=hidden, weight=weight, labels=labels)
    if len(hidden.shape) == 0:
        raise ValueError(f"{OPERATOR}: hidden has no dimensions; accepted: [..., H].")
    layouts = ("[V, H]", "[H, V]") if transpose_weight else ("[H, V]", "[V, H]")
    width = weight.shape[1 if transpose_weight else 0] if len(weight.shape) == 2 else None
    if 0 in weight.shape or width not in (hidden.shape[-1], -1):
        raise ValueError(
            f"{OPERATOR}: weight has shape {list(weight.shape)} and hidden {list(hidden.shape)}; accepted: "
            f"hidden [..., H] and weight {layouts[0]} with H and V above 0. "
            f"For {layouts[1]}, pass transpose_weight={not transpose_weight}."
        )
    check_shape(OPERATOR, "labels", labels, list(hidden.shape)[:-1], "hidden's dimensions before the last")
    paddle_release.check_min_tokens(OPERATOR, labels)
    if not -(2**31) <= ignore_index < 2**31:
        raise ValueError(f"{OPERATOR}: ignore_index is {ignore_index}; accepted: a 32-bit integer.")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{OPERATOR}: reduction is {reduction!r}; accepted: {', '.join(REDUCTIONS)}.")
    options = int(ignore_index), bool(transpose_weight)
    if group is not None and group.nranks > 1:
        losses = _losses_of_group(hidden, weight, labels, *options, group)
        return _reduced(losses, labels, ignore_index, reduction)
    if not any(map(is_split, (hidden, weight, labels))):
        vocabulary = _vocabulary(weight, transpose_weight)
        return LINEAR_CROSS_ENTROPY(hidden, weight, labels, None, *options, reduction, vocabulary)
    return _reduced(_losses_of_parts(hidden, weight, labels, *options), labels, ignore_index, reduction)


def _vocabulary(weight, transpose_weight: bool) -> int:
    return weight.shape[0 if transpose_weight else 1]


# ---- results of the backends: the loss, or statistics of blocks, which the processes combine
#
# Arguments of every backend: hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction,
# vocabulary (the size of the full vocabulary). If ``first_ids`` is None, the result is the reduced loss.
# Otherwise it is int64 [G], the first ids of the G blocks of the vocabulary in weight. The results for each
# block are then its log-sum-exp and the logit of the label (0 if the label is in another block), float32
# [..., G].


def _losses_of_parts(hidden, weight, labels, ignore_index: int, transpose_weight: bool):
    """The losses [...] of distributed tensors. With a sharded vocabulary only ``_joined`` communicates."""
    vocabulary = _vocabulary(weight, transpose_weight)
    blocks = _blocks(hidden, weight, 0 if transpose_weight else 1)
    options = ignore_index, transpose_weight, "none", vocabulary
    if blocks == 1:
        return LINEAR_CROSS_ENTROPY(hidden, weight, labels, None, *options)
    with default_device_of(hidden):
        first_ids = paddle.arange(blocks, dtype="int64") * (vocabulary // blocks)
    return _joined(*LINEAR_CROSS_ENTROPY(hidden, weight, labels, first_ids, *options), labels, ignore_index)


def _losses_of_group(hidden, weight, labels, ignore_index: int, transpose_weight: bool, group):
    """The losses [...], identical on all ranks of ``group``. The ranks exchange three numbers per token."""
    block = _vocabulary(weight, transpose_weight)
    with default_device_of(hidden):
        first_ids = paddle.full([1], group.rank * block, "int64")
    options = ignore_index, transpose_weight, "none", group.nranks * block
    hidden = mp_ops._c_identity(hidden, group=group)  # backward adds the gradients of all ranks
    lse, target = LINEAR_CROSS_ENTROPY(hidden, weight, labels, first_ids, *options)
    largest = lse.detach().clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    own = paddle.concat([paddle.exp(lse - largest), target], -1)
    sums = mp_ops._mp_allreduce(own, group=group, use_calc_stream=True, use_model_parallel=True)
    counts = (labels != ignore_index).astype("float32")
    return (largest.squeeze(-1) + sums[..., 0].log() - sums[..., 1]) * counts


def _blocks(hidden, weight, dim: int) -> int:
    """The number of equal shards of weight's dimension ``dim`` on its mesh; 1 if it is not sharded.

    A mesh axis that shards the tokens does not count, because the vocabulary is gathered along that axis.
    """
    if not is_split(weight):
        return 1
    blocks, sizes = 1, mesh_of(weight).shape
    of_hidden = placements_of(hidden) if is_split(hidden) else [dist.Replicate()] * len(sizes)
    for size, placement, other in zip(sizes, placements_of(weight), of_hidden, strict=True):
        blocks *= size if placement.is_shard(dim) and not other.is_shard() else 1
    return blocks if weight.shape[dim] % blocks == 0 else 1


def _joined(lse, target, labels, ignore_index: int):
    """The losses [...] from the statistics [..., G]. Sharded blocks communicate three numbers per token."""
    # Not paddle.logsumexp, which adds up the devices' logarithms along a sharded dimension.
    largest = lse.detach().max(-1, keepdim=True)
    total = largest.squeeze(-1) + _over_blocks(paddle.exp(lse - largest)).log()
    counts = (labels != ignore_index).astype("float32")
    return (total - _over_blocks(target)) * counts


def _over_blocks(values):
    """The sum over the blocks of the vocabulary, the last dimension: [..., G] -> [...].

    Sharded blocks are summed by a matmul with ones, because the gradient of Paddle's sum gathers the values
    although it needs only their shape.
    """
    if not is_split(values):
        return values.sum(-1)
    return paddle.matmul(values, paddle.ones([values.shape[-1], 1], values.dtype)).squeeze(-1)


def _reduced(losses, labels, ignore_index: int, reduction: str):
    if reduction == "none":
        return losses
    counted = 1.0
    if reduction == "mean":
        counted = paddle.clip((labels != ignore_index).astype(losses.dtype).sum(), min=1.0)
    if not is_split(losses):
        return losses.sum() / counted if reduction == "mean" else losses.sum()
    # Sharded tokens are multiplied by ones; see ``_over_blocks``. A division, even by 1, reduces the partial
    # sums, because Paddle 3.3 does not support the gradient of partial results here.
    row = losses.reshape([1, -1])
    total = paddle.matmul(row, paddle.ones_like(row), transpose_y=True)
    return (total / (counted if reduction == "mean" else paddle.ones([], losses.dtype))).reshape([])


def _check_labels(labels, vocabulary: int, ignore_index: int) -> None:
    """Raises ValueError for a label out of range. Labels of a captured program are not checked."""
    if is_captured(labels):
        return
    wrong = labels[(labels != ignore_index) & ((labels < 0) | (labels >= vocabulary))]
    if wrong.shape[0] > 0:
        raise ValueError(
            f"{OPERATOR}: a label is {int(wrong[0])}; accepted: 0 to {vocabulary - 1} (the vocabulary of "
            f"weight) and ignore_index {ignore_index}."
        )


def _composed(hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction, vocabulary):
    _check_labels(labels, vocabulary, ignore_index)
    logits = of_logits.product(hidden, weight, transpose_y=transpose_weight)
    if first_ids is not None:
        return of_logits.Block(first_ids).forward(logits, labels)
    (losses,) = of_logits.Losses(ignore_index).forward(logits, labels)
    return _reduced(losses, labels, ignore_index, reduction)


def _composed_unsupported(hidden, weight, *_others):
    return no_16_bit_on_cpu(hidden, weight)


# ---- the host kernels


def _native(hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction, vocabulary):
    if first_ids is None and _gradients_come_with_the_loss(hidden, weight, reduction):
        return _LossAndGradients.apply(hidden, weight, labels, ignore_index, transpose_weight, reduction)
    statistics = native.call(
        "pf_linear_cross_entropy",
        hidden,
        weight,
        labels,
        _one_block(labels) if first_ids is None else first_ids,
        ignore_index,
        vocabulary,
        transpose_weight,
        native.wants_gradient(hidden),
        native.wants_gradient(weight),
    )
    if first_ids is not None:
        return statistics
    return _reduced(_joined(*statistics, labels, ignore_index), labels, ignore_index, reduction)


def _one_block(labels):
    with default_device_of(labels):
        return paddle.zeros([1], "int64")


def _gradients_come_with_the_loss(hidden, weight, reduction: str) -> bool:
    """Saves one of four matmuls. In 16 bits, weight's gradient would need large float32 accumulators."""
    if reduction == "none" or is_captured(hidden) or dtype_name(hidden) != "float32":
        return False
    if hidden.size // hidden.shape[-1] * (weight.size // hidden.shape[-1]) < FEW_LOGITS:
        return False
    return paddle.is_grad_enabled() and not (hidden.stop_gradient and weight.stop_gradient)


class _LossAndGradients(OperatorLayer):
    """The loss, with gradients computed in the forward pass and scaled in the backward pass."""

    operator = OPERATOR

    @staticmethod
    def forward(ctx, hidden, weight, labels, ignore_index, transpose_weight, reduction):
        ctx.save_for_backward(hidden, weight, labels)
        wanted = (not hidden.stop_gradient, not weight.stop_gradient)
        ctx.options = (ignore_index, transpose_weight, reduction == "mean", *wanted)
        losses, *ctx.gradients = native.call(_WITH_BACKWARD, hidden, weight, labels, *ctx.options)
        return _reduced(losses, labels, ignore_index, reduction)

    @staticmethod
    def backward(ctx, dloss):
        # Moved, not copied. A second backward of a retained graph recomputes them.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            _, *gradients = native.call(_WITH_BACKWARD, *ctx.saved_tensor(), *ctx.options)
        scale, wanted = float(dloss), ctx.options[-2:]
        if scale != 1.0:
            gradients = [gradient.scale_(scale) for gradient in gradients]
        return (*(gradient if keep else None for gradient, keep in zip(gradients, wanted, strict=True)), None)


_WITH_BACKWARD = "pf_linear_cross_entropy_with_backward"


def _native_unsupported(hidden, weight, labels, *_others):
    if dtype_name(hidden) == "float64":
        return "the host kernels do not support float64"
    return native.unsupported_reason(hidden, weight, labels)


def _native_mode(hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction, vocabulary):
    if first_ids is None and _gradients_come_with_the_loss(hidden, weight, reduction):
        return _WITH_BACKWARD
    return "pf_linear_cross_entropy"


# ---- the card's kernels


def _ascend(hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction, vocabulary):
    _check_labels(labels, vocabulary, ignore_index)
    kernel = of_logits.Losses(ignore_index) if first_ids is None else of_logits.Block(first_ids)
    rows, ids = hidden.reshape([-1, hidden.shape[-1]]), labels.reshape([-1])
    if is_captured(hidden):
        results = kernel.forward(of_logits.product(rows, weight, transpose_y=transpose_weight), ids)
    else:
        results = of_logits.Chunks.apply(kernel, rows, weight, ids, transpose_weight)
    if first_ids is not None:
        return [result.reshape([*labels.shape, 1]) for result in results]
    losses = results[0].reshape(labels.shape)
    return _reduced(losses, labels, ignore_index, reduction)


def _ascend_unsupported(hidden, weight, labels, *_others):
    if dtype_name(hidden) == "float64":
        return "a card runs float64 on its AICPU"
    return ascend.unsupported_reason(hidden, weight, labels)


def _ascend_mode(hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction, vocabulary):
    kernels = "cross_entropy_with_softmax" if first_ids is None else "max, exp, sum and log"
    if is_captured(hidden):
        return f"matmul and {kernels} on all tokens: captured programs do not use chunks"
    tokens = of_logits.chunk(hidden, _vocabulary(weight, transpose_weight))
    return f"matmul and {kernels} on {tokens} tokens at a time"


_NAMES = ("hidden", "weight", "labels", "first_ids")
_NAMES += ("ignore_index", "transpose_weight", "reduction", "vocabulary")


def _sharding_rule(
    hidden, weight, labels, first_ids, ignore_index, transpose_weight, reduction, vocabulary
) -> ShardingRule:
    tokens, columns = numbered(len(labels.shape)), None if first_ids is None else "vocabulary"
    inputs = {
        "hidden": (*tokens, None),
        "weight": (columns, None) if transpose_weight else (None, columns),
        "labels": tokens,
        "first_ids": (columns,),
    }
    outputs = (tokens,) if first_ids is None else ((*tokens, columns),) * 2
    return ShardingRule(inputs, outputs, yielding=("weight",))


LINEAR_CROSS_ENTROPY = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_unsupported, _ascend_mode),
    native=Backend(_native, _native_unsupported, _native_mode),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(_NAMES, _sharding_rule),
)
