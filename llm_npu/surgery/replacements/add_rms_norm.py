"""Residual sums fused with the norms that read them, with ``paddle_fused.add_rms_norm``.

Models with dropout before the sums use ``paddle_fused.dropout_add_rms_norm`` in training.
``llm_npu.models.family.VARIANTS`` describes the variants of decoder layers under ``add_rms_norm``. Fusable
layers are the norms after attention, the input norm of every layer except the first, and the final norm.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import paddle

import paddle_fused
from llm_npu.surgery import swap
from llm_npu.surgery.batch import Batch
from llm_npu.surgery.fusable_layers import FusableLayer, fusable_layer
from llm_npu.surgery.registry import NotFused, Replacement, kernel
from llm_npu.surgery.residual_sums import (
    DROPOUT,
    NEXT,
    NORM,
    NORMS,
    READS,
    WAITING,
    CannotRewrite,
    norm_of_sum,
    probability_of,
    sum_and_norm,
    with_sums,
)

OPERATOR = "add_rms_norm"
DROPOUT_OF_SUM = "_dropout_of_sum"  # attribute of a norm: weak reference to the dropout before its sum


def example(norm, batch) -> list:
    if batch.recomputed and norm.__dict__.get(READS) == NEXT:
        return []  # not fused under recompute, see residual_sum
    x = batch.empty(batch.rows, batch.length, *norm.weight.shape, dtype=norm.weight.dtype)
    dropout = norm.__dict__.get(DROPOUT_OF_SUM, lambda: None)()
    return [partial(sum_and_norm, norm, x, x, probability_of(dropout) or 0.0)]


def off_by_default(norm) -> str | None:
    (call,) = example(norm, Batch(1, 1, "float32"))
    chosen = paddle_fused.explain_dispatch(call).chosen
    if chosen == "ascend":
        return "off by default: the plugin has no kernel for both, so it would not reduce kernel launches"
    return None if chosen == "native" else "off by default: no kernel computes both"


@kernel(
    OPERATOR,
    known_as="npu_fused_add_rmsnorm",
    operator=OPERATOR,
    example=example,
    whole_model=True,
    off_by_default=off_by_default,
    instead_of="rms_norm",
)
def replace(model) -> Mapping[object, Replacement | NotFused]:
    answers: dict[object, Replacement | NotFused] = {}
    for layer, fusable, following in decoder_layers(model):
        norms = {NORM: layer.post_attention_layernorm, NEXT: following}
        if fusable.variant == "forward, then more":
            del norms[NEXT]
        norms = {which: norm for which, norm in norms.items() if _is_norm(norm)}
        try:
            answers[layer] = _layer(layer, fusable, norms)
        except CannotRewrite as error:
            answers |= {norm: NotFused(str(error)) for norm in norms.values()}
        else:
            for which, norm in norms.items():
                attributes = {WAITING: None, READS: which}
                if dropout := getattr(layer, DROPOUT, None):
                    attributes[DROPOUT_OF_SUM] = weakref.ref(dropout)
                answers[norm] = Replacement(result=norm_of_sum, attributes=attributes)
    return answers


def _layer(layer, fusable: FusableLayer, norms: Mapping[str, object]) -> Replacement:
    """The replacement of a decoder layer; raises CannotRewrite if it does not match its family's record."""
    with_norms = partial(Replacement, is_site=False, independent=True)
    # Weak references, because a pipeline drops layers of other stages.
    attributes = {NORMS: {which: weakref.ref(norm) for which, norm in norms.items()}}
    if fusable.variant == "attn and post_process":
        for name, which in (("attn", NORM), ("post_process", NEXT)):
            method = getattr(fusable.upstream, name)
            if getattr(type(layer), name) is not method or name in layer.__dict__:
                raise CannotRewrite(f"{type(layer).__name__} overrides the method {name}")
            attributes[name] = types.MethodType(with_sums(method, which), layer)
        return with_norms(attributes=attributes)
    forward = with_sums(
        fusable.upstream.forward, NORM, "" if fusable.variant == "forward, then more" else NEXT
    )
    reason = fusable.overridden(layer)
    if reason is None:
        return with_norms(forward=forward, attributes=attributes)
    if type(layer).__name__.endswith("Pipe") and "forward" not in layer.__dict__:
        return with_norms(calls=_base_of_stage(layer, forward), attributes=attributes)
    raise CannotRewrite(reason)


def _base_of_stage(layer, forward) -> Mapping[str, object]:
    """Replacements for the base-class forward that the forward of a stage calls.

    PaddleNLP's stages call it by ``super()``, PaddleFormers' by a closure variable.
    """
    base = SimpleNamespace(forward=types.MethodType(forward, layer))
    return {"super": lambda: base, "decoder_layer": SimpleNamespace(forward=forward)}


def decoder_layers(model) -> Iterator[tuple[paddle.nn.Layer, FusableLayer, paddle.nn.Layer | None]]:
    """The decoder layers of ``model``, each with the norm that reads its result.

    The norm is None if the result leaves the model or its pipeline stage.
    """
    seen: set[paddle.nn.Layer] = set()
    for container in model.sublayers(include_self=True):
        chain = [container, *_flat(container), None]
        for layer, following in pairwise(chain):
            fusable = None if layer is None or layer in seen else fusable_layer(layer, OPERATOR)
            if fusable is not None:
                seen.add(layer)
                yield layer, fusable, None if layer is container else _first_norm(following)


def _flat(container) -> Iterator[paddle.nn.Layer]:
    for child in container.children():
        yield from child if isinstance(child, paddle.nn.LayerList) else [child]


def _first_norm(layer) -> paddle.nn.Layer | None:
    """The norm at the start of a layer: the layer itself, or the first norm of a decoder layer or stage."""
    own = (getattr(layer, name, None) for name in ("input_layernorm", "norm"))
    return next((norm for norm in (layer, *own) if _is_norm(norm)), None)


def _is_norm(layer) -> bool:
    fusable = fusable_layer(layer, "rms_norm")
    return fusable is not None and (swap.is_swapped(layer) or fusable.overridden(layer) is None)
