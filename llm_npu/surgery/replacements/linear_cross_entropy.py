"""The head and the loss of a language model with ``paddle_fused.linear_cross_entropy``.

With labels, the head passes its inputs instead of logits to the criterion if the logits are otherwise unused:
in training, and inside ``pending_logits.loss_only``. The criterion still computes the mean. Without labels,
as in generation, the head computes the logits.

``llm_npu.models.family.VARIANTS`` describes the variants under ``linear_cross_entropy``.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable

import paddle
from paddle.distributed import fleet

import paddle_fused
from llm_npu.core import auto_cast
from llm_npu.surgery import swap
from llm_npu.surgery.fusable_layers import FusableLayer, fusable_layer
from llm_npu.surgery.pending_logits import PendingLogits, are_pending, are_unread, pending
from llm_npu.surgery.registry import NotFused, Replacement, kernel

PRODUCT, LOGITS, RECOMPUTE = "parallel_matmul", "calc_lm_head_logits", "recompute"


def example(head, batch) -> list | None:
    weight = head.weight
    if weight.is_dist():  # auto-parallel models call the operator in a separate layer
        return None
    transposed = _transposed(head)
    hidden = batch.empty(batch.rows, batch.length, weight.shape[1 if transposed else 0])
    labels = paddle.zeros([batch.rows, batch.length], dtype="int64")
    options = {"transpose_weight": transposed, "group": _group(weight), "reduction": "none"}
    weight = weight.astype(batch.dtype)
    return [lambda: paddle_fused.linear_cross_entropy(hidden, weight, labels, **options)]


@kernel(
    "linear_cross_entropy",
    known_as="npu_fused_linear_cross_entropy",
    operator="linear_cross_entropy",
    example=example,
    in_auto=False,
)
def replace(layer) -> Replacement | NotFused | None:
    fusable = fusable_layer(layer, "linear_cross_entropy")
    return _wrapper(layer) if fusable is None else VARIANTS[fusable.variant](layer, fusable)


# ---- the head


def _head(layer, fusable: FusableLayer) -> Replacement | NotFused:
    upstream = fusable.upstream.forward.__globals__[PRODUCT]
    reason = fusable.overridden(layer)
    return NotFused(reason) if reason else Replacement(calls={PRODUCT: _unless_pending(upstream)})


def _general_head(layer, fusable: FusableLayer) -> Replacement | NotFused:
    reason = fusable.overridden(layer) or _unsupported_head(layer)
    return NotFused(reason) if reason else Replacement(calls=_general_calls(fusable.upstream))


def _head_of_stage(layer, fusable: FusableLayer) -> Replacement | NotFused:
    reason = fusable.overridden(layer) or _unsupported_head(layer)
    if reason:
        return NotFused(reason)
    general = fusable.upstream.__mro__[1]
    forward = swap.calling(general.forward, _general_calls(general))

    def first_of_tuple(self, args):
        return forward(self, args[0] if isinstance(args, (tuple, list)) else args)

    return Replacement(forward=first_of_tuple)


def _general_calls(head: type) -> dict[str, Callable]:
    logits = head.forward.__globals__[LOGITS]
    return {LOGITS: swap.calling(logits, {PRODUCT: _unless_pending(logits.__globals__[PRODUCT])})}


def _unsupported_head(head) -> str | None:
    if head.bias is not None:
        return "it has a bias"
    if head.config.get("num_nextn_predict_layers", 0) > 0:
        return "it also predicts further tokens (num_nextn_predict_layers)"
    return None


def _unless_pending(product: Callable) -> Callable:
    """``product``, a library's ``parallel_matmul``, deferred while logits are pending."""
    signature = inspect.signature(product)

    @paddle.jit.not_to_static
    def product_or_pending(*args, **kwargs):
        if not are_pending():
            return product(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        hidden, weight = list(bound.arguments.values())[:2]
        transposed, group = bound.arguments.get("transpose_y", False), _group(weight)
        columns = weight.shape[0 if transposed else 1]
        if group is not None and not bound.arguments["tensor_parallel_output"]:
            columns *= group.nranks
        return PendingLogits(*auto_cast.cast_inputs(hidden, weight), transposed, group, columns)

    return product_or_pending


def _group(weight):
    """The group that shards a head's ``weight``; None if the weight is not sharded."""
    hcg = getattr(fleet.fleet, "_hcg", None)
    if hcg is None or weight.is_dist() or not weight.is_distributed:
        return None
    return hcg.get_model_parallel_group() if hcg.get_model_parallel_world_size() > 1 else None


def _transposed(head) -> bool:
    """Whether the weight is [V, H]."""
    if "transpose_y" in head.__dict__:
        return bool(head.transpose_y)
    used = type(head).forward.__code__.co_names
    if "tie_word_embeddings" in used:  # Gemma
        return bool(head.config.tie_word_embeddings)
    return PRODUCT not in used  # always transposed in PaddleFormers


# ---- the criterion


def _criterion(layer, fusable: FusableLayer) -> Replacement | NotFused:
    attributes = {"loss_func": _losses(layer, layer.loss_func.ignore_index)}
    if _is_parallel(layer):
        # Otherwise the criterion replaces loss_func for whole logits, which ``_losses`` handles.
        attributes["enable_parallel_cross_entropy"] = False
    return Replacement(attributes=attributes, is_site=False)


def _general_criterion(layer, fusable: FusableLayer) -> Replacement | NotFused:
    if layer.loss_type != "sft":
        return NotFused(f"its loss is {layer.loss_type}")
    if layer.use_filtered_label_loss or layer.use_fused_head_and_loss_fn or layer.use_subbatch:
        return NotFused(
            "it selects or splits logits (use_filtered_label_loss, loss_subbatch_sequence_length)"
        )
    # PaddleFormers' spelling of the attribute.
    loss = layer.loss_foward_fn
    attributes = {
        "loss_func": _losses(layer, layer.ignored_index),
        "loss_foward_fn": swap.calling(loss, {RECOMPUTE: _unless_deferred(loss.__globals__[RECOMPUTE])}),
    }
    return Replacement(attributes=attributes, is_site=False)


def _unless_deferred(recompute: Callable) -> Callable:
    """``recompute`` for a loss from logits; a call with ``PendingLogits`` runs directly.

    Paddle's ``recompute`` sees no tensor that needs a gradient in ``PendingLogits``, so its loss would have
    none. The operator recomputes the logits itself.
    """

    def recompute_logits(function, *args, **kwargs):
        if any(isinstance(argument, PendingLogits) for argument in args):
            return function(*args, **kwargs)
        return recompute(function, *args, **kwargs)

    return recompute_logits


def _losses(criterion, ignore_index: int) -> Callable:
    """Replaces ``criterion.loss_func``: labels [B, S, 1] -> losses [B, S, 1]."""
    upstream, sharded = criterion.loss_func, _is_parallel(criterion)
    whole = paddle.nn.CrossEntropyLoss(reduction="none", ignore_index=ignore_index)
    vocabulary = criterion.config.vocab_size

    def losses(logits, labels):
        if isinstance(logits, PendingLogits):
            return logits.losses(labels.squeeze(-1), ignore_index).unsqueeze(-1)
        return (whole if sharded and logits.shape[-1] == vocabulary else upstream)(logits, labels)

    return losses


def _is_parallel(criterion) -> bool:
    """Whether the class has separate functions for sharded and whole logits; GPT has one for both."""
    return getattr(criterion, "enable_parallel_cross_entropy", False)


# ---- the model, which receives the labels


def _model(layer, fusable: FusableLayer) -> Replacement:
    upstream = type(layer).forward
    names = list(inspect.signature(upstream).parameters)[1:]

    @functools.wraps(upstream)
    def forward(self, *args, **kwargs):
        labels = kwargs["labels"] if "labels" in kwargs else swap.by_name(names, args, {}).get("labels")
        with pending(labels is not None and are_unread(self)):
            return without_pending(upstream(self, *args, **kwargs))

    return Replacement(forward=forward, is_site=False)


def _stages(layer, fusable: FusableLayer) -> Replacement:
    upstream = type(layer).forward

    @functools.wraps(upstream)
    def forward(self, *args, **kwargs):
        with pending(are_unread(self)):
            return upstream(self, *args, **kwargs)

    return Replacement(forward=forward, is_site=False)


def _wrapper(layer) -> Replacement | None:
    """For the libraries' LoRAModel, which stores the model's forward when it wraps the model."""
    kept = layer.__dict__.get("forward")
    inner = getattr(kept, "__self__", layer)
    fusable = fusable_layer(inner, "linear_cross_entropy")
    if inner is layer or fusable is None or VARIANTS[fusable.variant] not in (_model, _stages):
        return None

    def forward(self, *args, **kwargs):
        return inner.forward(*args, **kwargs)

    return Replacement(attributes={"forward": types.MethodType(forward, layer)}, is_site=False)


def without_pending(outputs):
    """The outputs of a model with None in place of pending logits."""
    if isinstance(outputs, tuple):
        return tuple(None if isinstance(output, PendingLogits) else output for output in outputs)
    if isinstance(getattr(outputs, "logits", None), PendingLogits):
        return type(outputs)(**{name: output for name, output in outputs.items() if name != "logits"})
    return outputs


VARIANTS = {
    "parallel_matmul": _head,
    "general head": _general_head,
    "first of a tuple": _head_of_stage,
    "criterion": _criterion,
    "general criterion": _general_criterion,
    "with labels": _model,
    "stages": _stages,
}
