"""Attention of decoders with ``paddle_fused.flash_attention``.

``llm_npu.models.family.VARIANTS`` describes the variants under ``attention``.

Legend: B batch, S sequence (Sq queries, Skv keys), N heads, D head size.
"""

from __future__ import annotations

import copy
import inspect
from functools import partial
from types import SimpleNamespace

import paddle

from llm_npu.core.errors import UserError
from llm_npu.surgery import attention_interface, learned_positions, split_sequence
from llm_npu.surgery.batch import parts
from llm_npu.surgery.decoder_mask import additive, mask_of
from llm_npu.surgery.fusable_layers import FusableLayer, fusable_layer
from llm_npu.surgery.registry import NotFused, Replacement, kernel
from llm_npu.surgery.swap import by_name
from llm_npu.surgery.vision import attention as vision_attention
from llm_npu.surgery.vision import paddleocr_vl, qwen_vl
from paddle_fused import masks


def example(layer, batch) -> list | None:
    variant = fusable_layer(layer, "attention").variant
    if variant in EXAMPLES:
        return EXAMPLES[variant](layer, batch)
    share = parts(getattr(layer, "q_proj", None))
    heads = layer.num_heads // share, layer.num_key_value_heads // share
    *heads, length = split_sequence.operands(layer, *heads, batch.length)
    query, key = (batch.empty(batch.rows, length, count, layer.head_dim) for count in heads)
    upstream = type(layer).forward.__globals__.get("scaled_dot_product_attention")
    dropout = layer.config.attention_dropout if upstream is not None and _has_dropout(upstream) else 0.0
    mask = masks.causal() if batch.mask is None else batch.mask
    operator = split_sequence.operator(layer)
    return [lambda: operator(query, key, key, mask, dropout=dropout)]


@kernel("attention", known_as="npu_fused_attention", operator="flash_attention", example=example)
def replace(layer) -> Replacement | NotFused | None:
    fusable = fusable_layer(layer, "attention")
    return None if fusable is None else VARIANTS[fusable.variant](layer, fusable)


def _attention_layer(layer, fusable: FusableLayer) -> Replacement | NotFused:
    reason = fusable.overridden(layer) or _unsupported(layer.config)
    if reason:
        return NotFused(reason)
    calls = {"repeat_kv": keep_heads}
    if fusable.variant == "F":
        return Replacement(
            calls={
                **calls,
                "F": SimpleNamespace(scaled_dot_product_attention=partial(functional_attention, layer)),
            },
            attributes={"config": _changed(layer.config, use_flash_attention=True)},
            arguments=refuse_weights,
        )
    if fusable.variant == "attn_func":
        return Replacement(calls=calls, attributes={"attn_func": in_place_of(layer.attn_func, layer)})
    name = "scaled_dot_product_attention"
    return Replacement(calls={**calls, name: in_place_of(fusable.upstream.forward.__globals__[name], layer)})


def refuse_weights(layer, arguments: dict) -> dict:
    if arguments.get("output_attentions"):
        raise UserError(
            f"output_attentions: the fused attention of {type(layer).__name__} does not return weights; "
            "remove it, or apply the kernels with use_npu_fusion_attention=False"
        )
    return arguments


def _unsupported(config) -> str | None:
    if getattr(config, "alibi", False):
        return "the model has ALiBi, which adds a bias to the scores of every head"
    if getattr(config, "context_parallel_degree", 1) > 1:
        return "context-parallel attention exchanges keys and values in a ring"
    if getattr(config, "sep_parallel_degree", 1) > 1:
        return "its heads are exchanged inside attention (sep_parallel_degree > 1)"
    return None


def _changed(config, **values):
    changed = copy.copy(config)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


def keep_heads(states, groups):
    """Replaces ``repeat_kv``; the operator reads each key head for its group of query heads."""
    return states


def in_place_of(upstream, layer):
    """The fused attention of ``layer`` with the signature of ``upstream``, its
    ``scaled_dot_product_attention``."""
    names = list(inspect.signature(_function(upstream)).parameters)
    has_dropout = _has_dropout(upstream)

    def attention(*args, **kwargs):
        arguments = by_name(names, args, kwargs)
        query, key, value = (arguments[f"{name}_states"] for name in ("query", "key", "value"))
        if arguments["output_attentions"]:
            split_sequence.refuse_weights(layer)
            return _with_weights(upstream, arguments)
        dropout = (
            arguments["config"].attention_dropout if has_dropout else arguments.get("attn_dropout_prob", 0.0)
        )
        mask = _mask(arguments["attention_mask"])
        training = arguments.get("training", arguments.get("trainer_mode", True))
        out = split_sequence.attend(layer, query, key, value, mask, dropout=dropout, training=training)
        width = out.shape[2] * out.shape[3]  # B and S may be unknown while a program is captured
        return out.reshape([-1, width] if arguments.get("sequence_parallel", False) else [0, 0, width])

    return attention


def _function(upstream):
    return upstream.func if isinstance(upstream, partial) else upstream


def _has_dropout(upstream) -> bool:
    """Whether this ``scaled_dot_product_attention`` of PaddleNLP reads ``attention_dropout``."""
    return "attention_dropout" in _function(upstream).__code__.co_names


def _mask(attention_mask) -> masks.Mask:
    """The mask object of a layer's argument.

    Args:
        attention_mask: a mask object; None for causal; or the additive mask [B, 1, Sq, Skv] of pipelines and
            auto-parallel models, 0 for visible keys and a large negative number for masked keys.
    """
    if attention_mask is None:
        return masks.causal()
    if isinstance(attention_mask, masks.Mask):
        return attention_mask
    if attention_mask.dtype == paddle.bool:
        raise UserError(
            "attention_mask is a bool tensor, for which PaddleNLP has two opposite meanings; accepted: None, "
            "a mask of paddle_fused.masks, or an additive mask"
        )
    return masks.dense(attention_mask < 0, invalid_rows=True)


def _with_weights(upstream, arguments: dict):
    """The result of the upstream function; a fused kernel cannot return attention weights."""
    query, key, value = (arguments[f"{name}_states"] for name in ("query", "key", "value"))
    groups = query.shape[2] // key.shape[2]
    mask = arguments["attention_mask"]
    if mask is None or isinstance(mask, masks.Mask):
        sizes = query.shape[0], query.shape[1], key.shape[1]
        mask = additive(mask or masks.causal(), *sizes, query.dtype)
    key, value = (paddle.repeat_interleave(states, groups, axis=2) for states in (key, value))
    return upstream(**{**arguments, "key_states": key, "value_states": value, "attention_mask": mask})


def functional_attention(layer, query, key, value, attn_mask=None, is_causal=False):
    """Replaces ``F.scaled_dot_product_attention`` of ``layer``; inputs are [B, S, N, D]."""
    return split_sequence.attend(layer, query, key, value, _mask(attn_mask))


def _decoder(layer, fusable: FusableLayer) -> Replacement | None:
    if _unsupported(layer.config):
        return None
    answers = {  # the functions that determine the mask in the upstream forward
        "is_casual_mask": lambda mask: False,
        "get_env_device": lambda: "cpu",
        "get_use_casual_mask": lambda: False,
    }
    return Replacement(
        calls=answers,
        attributes={"_prepare_decoder_attention_mask": keep_mask},
        arguments=partial(mask_as_object, fusable.variant == "causal decoder"),
        is_site=False,
    )


def keep_mask(attention_mask, *of_upstream):
    """Replaces ``_prepare_decoder_attention_mask``, which builds a tensor."""
    return attention_mask


@paddle.jit.not_to_static
def mask_as_object(is_causal: bool, layer, arguments: dict) -> dict:
    """The arguments of a decoder's forward with a mask object for ``attention_mask``.

    Args:
        is_causal: whether the layer is a ``causal decoder``.
    """
    tokens = arguments.get("input_ids")
    query_len = (tokens if tokens is not None else arguments["inputs_embeds"]).shape[1]
    cache = arguments.get("past_key_values")
    past = 0
    if cache is not None and cache[0] is not None:
        past = cache[0][0].shape[2 if is_causal else 1]
    start_rows = arguments.pop("attn_mask_startend_row_indices", None)
    attention_mask = arguments.get("attention_mask")
    mask = mask_of(attention_mask, start_rows, query_len, past + query_len)
    if is_causal and not isinstance(attention_mask, masks.Mask):
        mask = mask & masks.causal()
    return {**arguments, "attention_mask": mask}


def _auto_decoder(layer, fusable: FusableLayer) -> Replacement:
    """LlamaModelAuto; without a mask it passes None, and the layers are causal."""
    return Replacement(
        attributes={"config": _changed(layer.config, use_flash_attention=True)},
        arguments=refuse_mask,
        is_site=False,
    )


def refuse_mask(layer, arguments: dict) -> dict:
    if arguments.get("attention_mask") is not None:
        raise UserError(
            "attention_mask: PaddleNLP's auto-parallel Llama ignores masks with flash attention, and its "
            "fused attention is causal. Remove attention_mask, or use LlamaForCausalLM or "
            "LlamaForCausalLMNet."
        )
    return arguments


def _global_layer(layer, fusable: FusableLayer) -> Replacement:
    """GlobalOutputNet of LlamaForCausalLMNet; prepares positions and mask for all layers."""
    return Replacement(forward=global_outputs, is_site=False)


def global_outputs(self, position_ids, attention_mask, seq_length, batch_size, seq_length_with_past, *_):
    if position_ids is None and self.config.sep_parallel_degree > 1:
        position_ids = paddle.arange(seq_length, dtype="int64").expand((batch_size, seq_length))
    if attention_mask is not None:
        attention_mask = mask_of(attention_mask, None, seq_length, seq_length_with_past)
    return position_ids, attention_mask, None


def _pipe_embedding(layer, fusable: FusableLayer) -> Replacement:
    """LlamaEmbeddingPipe. Without a mask, it builds one on npu in which True means visible, the opposite of
    the operator's convention. On other devices it builds none, and the layers are causal."""
    return Replacement(calls={"get_env_device": lambda: "cpu"}, is_site=False)


def _vision_inputs(layer, fusable: FusableLayer) -> Replacement | None:
    """A layer outside of a vision tower; unchanged if it overrides the forward."""
    return None if fusable.overridden(layer) else paddleocr_vl.REPLACEMENTS[fusable.variant]


EXAMPLES = {
    "latent": attention_interface.latent_example,
    "core attention": learned_positions.example,
    "vision interface": vision_attention.example,
    "vision documents": vision_attention.example,
}
VARIANTS = {
    **dict.fromkeys(("attn_func", "function", "F"), _attention_layer),
    **dict.fromkeys(("decoder", "causal decoder"), _decoder),
    "decoder without mask": _auto_decoder,
    "inputs of all layers": _global_layer,
    "first stage": _pipe_embedding,
    "interface": attention_interface.layer,
    "vision interface": attention_interface.layer,
    "vision documents": vision_attention.layer,
    **dict.fromkeys(paddleocr_vl.REPLACEMENTS, _vision_inputs),
    **dict.fromkeys(qwen_vl.FORWARDS, qwen_vl.tower),
    "image features": qwen_vl.model,
    "makes masks, deepstack": qwen_vl.decoder,
    "latent": attention_interface.latent_layer,
    "makes masks": attention_interface.model,
    "core attention": learned_positions.layer,
    "learned positions": learned_positions.model,
}
