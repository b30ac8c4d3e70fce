"""PaddleFormers' attention: a single function for all names in its AttentionInterface.

Its attention layers look the function up by ``config._attn_implementation``. Its models create the masks of
all layers; they are dense, [B, 1, Sq, Skv], for the name "eager" and for padding. Here models create mask
objects for every attention implementation.

Legend: B batch, S sequence (Sq queries, Skv keys), N heads, D head size, V head size of value.
"""

from __future__ import annotations

import paddle

import paddle_fused
from llm_npu.core import auto_cast
from llm_npu.core.errors import UserError
from paddle_fused import masks

from .decoder_mask import mask_of
from .fusable_layers import FusableLayer
from .registry import NotFused, Replacement


def layer(layer, fusable: FusableLayer) -> Replacement | NotFused:
    """An attention layer."""
    reason = fusable.overridden(layer) or unsupported(layer.config)
    return NotFused(reason) if reason else Replacement(calls={"ALL_ATTENTION_FUNCTIONS": ForEveryName()})


def latent_layer(layer, fusable: FusableLayer) -> Replacement | NotFused:
    """An attention layer of DeepSeek-V3; its forward calls ``attn_func``."""
    reason = fusable.overridden(layer) or unsupported(layer.config)
    return NotFused(reason) if reason else Replacement(attributes={"attn_func": latent_attention})


def model(layer, fusable: FusableLayer) -> Replacement | None:
    """The model that creates the masks of all layers."""
    if unsupported(layer.config):
        return None
    calls = {
        "create_causal_mask_and_row_indices": causal_mask,
        "create_sliding_window_causal_mask_and_row_indices": sliding_window_mask,
        "create_causal_masks_and_row_indices": causal_mask_of_all_layers,
    }
    return Replacement(calls=calls, is_site=False)


def unsupported(config) -> str | None:
    if getattr(config, "context_parallel_size", 1) > 1:
        return "context-parallel attention exchanges keys and values between processes"
    if getattr(config, "sep_parallel_size", 1) > 1:
        return "its heads are exchanged between processes (sep_parallel_size > 1)"
    return None


ROUNDING = 2.0**-24  # of float32, the dtype in which operators scale


class ForEveryName:
    """Replaces ``ALL_ATTENTION_FUNCTIONS``."""

    def __getitem__(self, name):
        return attention


def attention(
    module,
    query,
    key,
    value,
    *,
    attention_mask=None,
    attn_mask_startend_row_indices=None,
    dropout=0.0,
    sink=None,
    scaling=None,
    is_causal=None,
    **_of_other_implementations,
):
    """query [B, N, Sq, D], key [B, Nkv, Skv, D], value [B, Nkv, Skv, V] -> [B, Sq, N * V], None.

    Args:
        attention_mask: None (causal); a mask object; or a tensor from a pipeline's first stage: an additive
            mask [B, 1, Sq, Skv], or a padding mask [B, 1, 1, Skv] combined with the causal mask.
    """
    if sink is not None:
        raise UserError("sink: the fused attention does not support sinks; leave attention unfused")
    lengths = query.shape[2], key.shape[2]
    if attn_mask_startend_row_indices is not None:
        mask = mask_of(None, attn_mask_startend_row_indices, *lengths, causal=is_causal is not False)
    elif attention_mask is None:
        mask = None if is_causal is False else masks.causal()
    else:
        mask = _of_tensor(attention_mask, *lengths)
    # Under AMP O1, Qwen3's q and k norms return float32, while value has 16 bits.
    query, key, value = auto_cast.cast_inputs(query, key, value)
    out = paddle_fused.flash_attention(query, key, value, mask, layout="BNSD", dropout=dropout, scale=scaling)
    out = out.transpose([0, 2, 1, 3])
    return out.reshape([0, 0, out.shape[2] * out.shape[3]]), None


def latent_attention(
    query,
    config,
    key,
    value,
    attention_mask,
    output_attentions,
    *,
    attn_mask_startend_row_indices=None,
    softmax_scale=1.0,
    training=True,
    sequence_parallel=False,
):
    """Replaces DeepSeek-V3's ``scaled_dot_product_attention``.

    query and key [B, N, S, D], value [B, N, S, V]. The softmax scale is 1 / sqrt(D) times YaRN's factor. The
    operator scales by 1 / sqrt(D), and the query is multiplied by the factor, as in PaddleFormers.
    """
    if output_attentions:
        raise UserError(
            "output_attentions: the fused attention does not return weights; remove output_attentions"
        )
    factor = softmax_scale * query.shape[-1] ** 0.5
    if abs(factor - 1) > ROUNDING:
        query = (query.astype("float32") * factor).astype(query.dtype)
    out, _ = attention(
        None,
        query,
        key,
        value,
        attention_mask=attention_mask,
        attn_mask_startend_row_indices=attn_mask_startend_row_indices,
        dropout=config.attention_dropout if training else 0.0,
    )
    return out.reshape([-1, out.shape[-1]]) if sequence_parallel else out


def latent_example(layer, batch) -> list:
    heads = batch.rows, layer.num_local_heads, batch.length
    query, value = batch.empty(*heads, layer.q_head_dim), batch.empty(*heads, layer.v_head_dim)
    mask = masks.causal() if batch.mask is None else batch.mask
    return [lambda: paddle_fused.flash_attention(query, query, value, mask, layout="BNSD")]


def _of_tensor(attention_mask, query_len: int, key_len: int) -> masks.Mask:
    if isinstance(attention_mask, masks.Mask):
        return attention_mask
    is_added = attention_mask.is_floating_point()
    hidden = attention_mask < 0 if is_added else paddle.logical_not(attention_mask.astype("bool"))
    hidden = hidden[..., :key_len]
    if hidden.shape[2] == query_len:
        return masks.dense(hidden, invalid_rows=True)
    return masks.causal() & masks.dense(hidden.expand([-1, -1, query_len, -1]), invalid_rows=True)


def causal_mask(
    *,
    config,
    inputs_embeds,
    batch_size,
    seq_length,
    cache_length,
    attention_mask=None,
    attn_mask_startend_row_indices=None,
    prepare_decoder_attention_mask=None,
    or_mask_function=None,
):
    """Replaces ``create_causal_mask_and_row_indices``; returns the mask object and no row indices."""
    if or_mask_function is not None:
        raise UserError("or_mask_function: the fused attention does not support it; leave attention unfused")
    rows, key_len = attn_mask_startend_row_indices, cache_length + seq_length
    return mask_of(None if rows is not None else attention_mask, rows, seq_length, key_len), None


def causal_mask_of_all_layers(*, return_mapping=True, **named):
    """Replaces ``create_causal_masks_and_row_indices`` of models without sliding windows."""
    assert not return_mapping, "no family has masks per kind of layer"
    return causal_mask(**named)


def sliding_window_mask(*, config, cache_length, attention_mask=None, **named):
    """Replaces ``create_sliding_window_causal_mask_and_row_indices``.

    The cache of a sliding-window layer holds only the last keys of the window.
    """
    window = config.sliding_window - 1  # keys before the query's position
    cache_length = min(cache_length, window)
    if attention_mask is not None:
        attention_mask = attention_mask[..., -(cache_length + named["seq_length"]) :]
    mask, rows = causal_mask(config=config, cache_length=cache_length, attention_mask=attention_mask, **named)
    return mask & masks.band(window, None), rows
