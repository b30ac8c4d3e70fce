"""GPT's attention and model; the model has learned positions and a single mask for all layers.

Legend: B batch, S sequence (Sq queries, Skv keys), N heads, D head size.
"""

from __future__ import annotations

import paddle

import paddle_fused
from llm_npu.core.errors import UserError
from paddle_fused import masks

from . import split_sequence
from .batch import parts
from .decoder_mask import mask_of
from .fusable_layers import FusableLayer
from .registry import NotFused, Replacement

MASKED_BELOW = -5e3  # half of the value that GPTModel adds to the score of a masked key


def example(layer, batch) -> list:
    """The operator call of an attention layer in training."""
    heads = layer.num_attention_heads // parts(getattr(layer, "q_proj", None))
    heads, _, length = split_sequence.operands(layer, heads, heads, batch.length)
    query = batch.empty(batch.rows, length, heads, layer.head_dim)
    mask = masks.causal() if batch.mask is None else batch.mask
    dropout = layer.config.attention_probs_dropout_prob
    return [lambda: paddle_fused.flash_attention(query, query, query, mask, dropout=dropout)]


def layer(layer, fusable: FusableLayer) -> Replacement | NotFused:
    """An attention layer; its forward calls a method of the layer."""
    reason = fusable.overridden(layer)
    if reason:
        return NotFused(reason)
    if layer.config.scale_qk_coeff != 1.0:
        return NotFused("it scales the scores in two steps (scale_qk_coeff)")
    attention = _attention(layer, fusable)
    return Replacement(attributes=dict.fromkeys(("_core_attention", "_flash_attention"), attention))


def _attention(layer, fusable: FusableLayer):
    """The fused attention with the arguments of the layer's methods."""
    local_seed = fusable.upstream.forward.__globals__["seed_guard_context"]
    dropout = layer.config.attention_probs_dropout_prob

    def attention(q, k, v, attention_mask=None, output_attentions=False):
        if output_attentions:
            raise UserError(
                f"output_attentions: the fused attention of {type(layer).__name__} does not return weights; "
                "remove it, or apply the kernels with use_npu_fusion_attention=False"
            )
        with local_seed("local_seed"):  # each process has its own heads
            out = split_sequence.attend(
                layer, q, k, v, _mask(attention_mask), dropout=dropout, training=layer.training
            )
        return out.reshape([0, 0, out.shape[2] * out.shape[3]])

    return attention


def _mask(attention_mask) -> masks.Mask:
    """The mask object of a layer's argument: a mask object, None, or an additive mask."""
    if attention_mask is None:
        return masks.causal()
    if isinstance(attention_mask, masks.Mask):
        return attention_mask
    return masks.dense(attention_mask < MASKED_BELOW, invalid_rows=True)


def model(layer, fusable: FusableLayer) -> Replacement | None:
    """GPTModel; its layers receive a mask object."""
    return None if fusable.overridden(layer) else Replacement(forward=forward, is_site=False)


def forward(
    self,
    input_ids=None,
    position_ids=None,
    attention_mask=None,
    *,
    inputs_embeds=None,
    use_cache=False,
    past_key_values=None,
    output_attentions=False,
    output_hidden_states=False,
    return_dict=False,
):
    """Replaces the forward of GPTModel, which builds the mask as a tensor [B, 1, Sq, Skv]."""
    if self.config.sequence_parallel and use_cache:
        raise UserError("sequence_parallel and use_cache cannot be combined; disable one of them")
    if (input_ids is None) == (inputs_embeds is None):
        raise UserError("GPTModel accepts either input_ids or inputs_embeds; pass exactly one")
    shape = input_ids.shape if input_ids is not None else inputs_embeds.shape[:-1]
    past = 0
    if past_key_values is not None and past_key_values[0] is not None:
        past = past_key_values[0][0].shape[1]
    if position_ids is None:
        position_ids = paddle.arange(past, past + shape[-1], dtype="int64").unsqueeze(0).expand(shape)
    hidden_states = self.embeddings(
        input_ids=input_ids, position_ids=position_ids, inputs_embeddings=inputs_embeds
    )
    outputs = self.decoder(
        hidden_states,
        attention_mask=_causal(attention_mask, shape[-1], past),
        use_cache=use_cache,
        past_key_values=past_key_values,
        output_hidden_states=output_hidden_states,
        output_attentions=output_attentions,
        return_dict=return_dict,
    )
    if output_hidden_states and return_dict:
        outputs.hidden_states = (hidden_states, *outputs.hidden_states)
    return outputs


@paddle.jit.not_to_static
def _causal(attention_mask, query_len: int, past: int) -> masks.Mask:
    """The mask object of the argument, which GPTModel combines with the causal mask."""
    mask = mask_of(attention_mask, None, query_len, past + query_len)
    return mask if isinstance(attention_mask, masks.Mask) else mask & masks.causal()
