"""Dropout, addition and LayerNorm of GPT's decoder with ``paddle_fused.dropout_add_layer_norm``.

A layer applies dropout to its attention output, adds it to the hidden states, and normalizes the sum for its
feed-forward layer. The feed-forward output is added and normalized by the next layer, or by the final norm:

    normed, hidden = dropout_add_layer_norm(attention(normed), hidden)      norm2
    normed, hidden = dropout_add_layer_norm(feed_forward(normed), hidden)   norm1 of the next layer

Two tensors are passed between layers: the output of the feed-forward layer and the hidden states. A
recomputed layer saves its input, so it receives their sum instead.
"""

from __future__ import annotations

import importlib
from functools import partial

import paddle
import paddle.nn.functional as F

import paddle_fused
from llm_npu.surgery.fusable_layers import FusableLayer, fusable_layer
from llm_npu.surgery.registry import NotFused, Replacement, kernel

OPERATOR = "dropout_add_layer_norm"
TAKES_RESIDUAL = "takes_residual"  # attribute of a norm with this module's forward


def example(layer, batch) -> list:
    x = batch.empty(batch.rows, batch.length, *layer.norm2.weight.shape)
    dropouts = (_attention_dropout(layer), _feed_forward_dropout(layer))
    return [partial(norm_forward, layer.norm2, x, x, dropout) for dropout in dropouts]


@kernel(OPERATOR, known_as="npu_fused_dropout_add_layer_norm", operator=OPERATOR, example=example)
def replace(layer) -> Replacement | NotFused | None:
    fusable = fusable_layer(layer, OPERATOR)
    return None if fusable is None else VARIANTS[fusable.variant](layer, fusable)


def _layer(layer, fusable: FusableLayer) -> Replacement | NotFused:
    reason = fusable.overridden(layer)
    if reason is None and not layer.config.normalize_before:
        reason = "it normalizes after the addition (normalize_before)"
    return NotFused(reason) if reason else Replacement(forward=layer_forward)


def _norm(layer, fusable: FusableLayer) -> Replacement | None:
    if fusable.overridden(layer):
        return None
    return Replacement(forward=norm_forward, attributes={TAKES_RESIDUAL: True}, is_site=False)


def _layers(layer, fusable: FusableLayer) -> Replacement | None:
    return None if fusable.overridden(layer) else Replacement(forward=layers_forward, is_site=False)


def _embeddings(layer, fusable: FusableLayer) -> Replacement:
    """Run dropout in float32 or float16, because paddle-custom-npu supports no other dtype."""

    probability = layer.dropout.p

    def dropout(x):
        return _dropout(x, probability, layer.training)

    return Replacement(attributes={"dropout": dropout}, is_site=False)


VARIANTS = {"embeddings": _embeddings, "layer": _layer, "norm": _norm, "layers": _layers}


def norm_forward(self, x, residual=None, dropout=0.0):
    """LayerNorm(x); with ``residual``, (LayerNorm(sum), sum) for sum = Dropout(x) + residual."""
    return type(self).forward(self, x) if residual is None else _normalised(self, x, residual, dropout)


@paddle.jit.not_to_static
def _normalised(self, x, residual, dropout: float):
    if residual.dtype not in (x.dtype, paddle.float32):
        residual = residual.astype(x.dtype)
    return paddle_fused.dropout_add_layer_norm(
        x, residual, self.weight, self.bias, dropout, self._epsilon, prenorm=True, training=self.training
    )


def layer_forward(
    self,
    hidden_states,
    attention_mask=None,
    use_cache=False,
    past_key_value=None,
    output_attentions=False,
    *,
    residual=None,
    adds=True,
):
    """Replaces the forward of GPTDecoderLayer.

    Args:
        residual: the tensor to add to ``hidden_states`` after their dropout; None for no addition.
        adds: whether to return the sum; False returns (feed-forward output, hidden states) instead.
    """
    if residual is None:
        normed, states = self.norm1(hidden_states), hidden_states
    else:
        normed, states = _added(self, self.norm1, hidden_states, residual, _feed_forward_dropout(self))
    inputs = (normed, None, None, attention_mask, use_cache, past_key_value, output_attentions)
    if self.enable_recompute and not normed.stop_gradient and _granularity(self) == "full_attn":
        outputs = _upstream(self, "recompute")(self.self_attn, *inputs, use_reentrant=False)
    else:
        outputs = self.self_attn(*inputs)
    attention, *others = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    normed, states = _added(self, self.norm2, attention, states, _attention_dropout(self))
    out = self.linear2(self.activation(self.linear1(normed), approximate=True))
    if adds:
        out = _sum(self, out, states, _feed_forward_dropout(self))
    first = out if adds else (out, states)
    return (first, *others) if others else first


def layers_forward(
    self,
    hidden_states,
    attention_mask=None,
    *,
    use_cache=False,
    past_key_values=None,
    output_attentions=False,
    output_hidden_states=False,
    return_dict=False,
):
    """Replaces the forward of TransformerDecoder, which passes only one tensor between layers."""
    residual = None
    caches, attentions, states = [], [], []
    recomputes = self.enable_recompute and not hidden_states.stop_gradient and _granularity(self) == "full"
    adds = recomputes or output_hidden_states
    for number, layer in enumerate(self.layers):
        past = past_key_values[number] if past_key_values is not None else None
        inputs = (hidden_states, attention_mask, use_cache, past, output_attentions)
        if recomputes and number not in (self.config.no_recompute_layers or ()):
            reentrant = self.config.recompute_use_reentrant
            outputs = _upstream(self, "recompute")(layer, *inputs, use_reentrant=reentrant)
        else:
            outputs = layer(*inputs, residual=residual, adds=adds)
        first, *others = outputs if use_cache or output_attentions else (outputs,)
        hidden_states, residual = (first, None) if adds else first
        caches += others[-1:] if use_cache else []
        attentions += others[:1] if output_attentions else []
        states += [hidden_states] if output_hidden_states else []
    if residual is None:
        out = self.norm(hidden_states)
    else:
        out, _ = _added(layer, self.norm, hidden_states, residual, _feed_forward_dropout(layer))
    outputs = [tuple(tensors) if tensors else None for tensors in (caches, states, attentions)]
    if return_dict:
        kind = _upstream(self, "BaseModelOutputWithPastAndCrossAttentions")
        return kind(
            last_hidden_state=out,
            past_key_values=outputs[0],
            hidden_states=outputs[1],
            attentions=outputs[2],
            cross_attentions=None,
        )
    present = tuple(output for output in outputs if output is not None)
    return (out, *present) if present else out


@paddle.jit.not_to_static
def _added(layer, norm, x, residual, dropout: float):
    """(LayerNorm(sum), sum) for sum = Dropout(x) + residual, with the random state of ``layer``."""
    if not getattr(norm, TAKES_RESIDUAL, False):
        hidden_states = _sum(layer, x, residual, dropout)
        return norm(hidden_states), hidden_states
    with _seeds(layer):
        return norm(x, residual, dropout)


def _sum(layer, x, residual, dropout: float):
    with _seeds(layer):
        return residual + _dropout(x, dropout, layer.training)


def _dropout(x, probability: float, training: bool):
    wide = x.astype("float32") if x.dtype == paddle.bfloat16 else x
    return F.dropout(wide, probability, training=training).astype(x.dtype)


def _seeds(layer):
    """A seed that is equal in processes that share a layer, unless they have different tokens."""
    name = "local_seed" if layer.config.sequence_parallel else "global_seed"
    return _upstream(layer, "seed_guard_context")(name)


def _upstream(layer, name: str):
    """The object ``name`` in the module of the layer's class."""
    return getattr(importlib.import_module(type(layer).__module__), name)


def _attention_dropout(layer) -> float:
    return layer.config.attention_probs_dropout_prob


def _feed_forward_dropout(layer) -> float:
    return layer.config.hidden_dropout_prob


def _granularity(layer) -> str:
    return layer.config.recompute_granularity
