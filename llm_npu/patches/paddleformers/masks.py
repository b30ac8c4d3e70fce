"""Patches for PaddleFormers' attention masks."""

from __future__ import annotations

import functools

import paddle


@functools.cache
def fix_npu_masks() -> None:
    """PaddleFormers 1.1 and 1.2 on npu: generation with a cache fails ("The data_type of input tensor in list
    isn't consistent, the first tensor is bool, but 1th tensor is int32").

    ``utils/masking_utils.py`` creates an int32 causal mask and a floating-point padding mask on npu, and then
    joins them with bool masks. The patch makes them bool, as on other devices.
    """
    from paddleformers.utils import masking_utils

    masking_utils.get_env_device = lambda: "cpu"


@functools.cache
def fix_flashmask_padding() -> None:
    """PaddleFormers 1.1 and 1.2: the default attention "flashmask" silently ignores padding.

    ``flashmask_attention_forward`` has no argument for the model's padding mask, which ends up unused in its
    ``**kwargs``. With left padding, as in generation, the logits are wrong. With the patch, a call with a
    padding mask runs the attention "eager"; a call with row indices is unchanged.
    """
    from paddleformers.nn.attention.interface import AttentionInterface

    upstream, eager = (AttentionInterface()[name] for name in ("flashmask", "eager"))

    @functools.wraps(upstream)
    def attention(module, query, key, value, attention_mask=None, **named):
        rows = named.setdefault("attn_mask_startend_row_indices", None)
        tensors = {"query": query, "key": key, "value": value}
        if attention_mask is None or rows is not None:
            return upstream(module, **tensors, **named)
        named["scaling"] = query.shape[-1] ** -0.5  # flashmask's fixed scale; DeepSeek-V3 passes another
        return eager(module, **tensors, attention_mask=attention_mask, **named)

    AttentionInterface.register("flashmask", attention)


@functools.cache
def fix_eager_attention_in_stages() -> None:
    """PaddleFormers 1.1 and 1.2: in pipeline stages, the attention "eager" does not mask later tokens.

    The causal mask is created by the model, but a stage is not a whole model. Without a mask, "sdpa" and
    "flashmask" are causal, while ``eager_attention_forward`` masks nothing. The patch makes "eager"
    causal.
    """
    from paddleformers.nn.attention.interface import AttentionInterface

    upstream = AttentionInterface()["eager"]

    @functools.wraps(upstream)
    def attention(module, query, key, value, attention_mask=None, **named):
        lengths = query.shape[2], key.shape[2]
        arguments = attention_mask, named.get("attn_mask_startend_row_indices"), named.get("is_causal")
        nothing = all(argument is None for argument in arguments)
        if nothing and lengths[0] > 1 and getattr(module, "is_causal", True):
            hidden = paddle.full([1, 1, *lengths], paddle.finfo(query.dtype).min, query.dtype)
            attention_mask = paddle.triu(hidden, diagonal=lengths[1] - lengths[0] + 1)
        return upstream(module, query, key, value, attention_mask=attention_mask, **named)

    AttentionInterface.register("eager", attention)


@functools.cache
def fix_sliding_window_rows() -> None:
    """PaddleFormers 1.1 and 1.2: layers with a sliding window change their row indices one by one.

    ``prepare_sliding_window_startend_row_indices`` reads and writes single elements, which causes thousands
    of device-to-host copies per step. The patch uses one vectorized operation.
    """
    from paddleformers.transformers import masking_utils

    def prepare_sliding_window_startend_row_indices(startend_row_indices, window_size=5):
        if startend_row_indices is None:
            return None
        rows = startend_row_indices
        last = paddle.arange(rows.shape[2], dtype=rows.dtype) + window_size
        first = paddle.minimum(rows[..., :1], last.unsqueeze(-1))
        return paddle.concat([first, rows[..., 1:]], -1) if rows.shape[-1] > 1 else first

    masking_utils.prepare_sliding_window_startend_row_indices = prepare_sliding_window_startend_row_indices
