"""A line of text from a language model, through PaddleNLP's ``generate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paddle


def continuation(model, tokenizer, prompt: str, max_new_tokens: int = 32) -> str:
    """The greedy continuation of ``prompt``, without the prompt.

    It ends with the end-of-text token, after ``max_new_tokens``, or at the last of the model's positions.
    Leaves the model's mode, its configuration and the random number generators as they were.
    ValueError for a prompt that is empty, or that leaves no position free.
    """
    ids = tokenizer(prompt)["input_ids"]
    free = model.config.max_position_embeddings - len(ids)
    if not ids:
        raise ValueError("The prompt is empty; give at least one token to continue.")
    if free < 1:
        raise ValueError(
            f"A prompt of {len(ids)} tokens leaves none of the model's "
            f"{model.config.max_position_embeddings} positions free; shorten it."
        )
    input_ids = paddle.to_tensor([ids], dtype="int64")
    with _inference(model), paddle.no_grad():
        new_ids, _ = model.generate(
            input_ids=input_ids,
            attention_mask=paddle.ones_like(input_ids),  # [1, T]; PaddleNLP's own default has another rank
            max_new_tokens=min(max_new_tokens, free),
            decode_strategy="greedy_search",
            use_cache=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    return tokenizer.decode(new_ids[0].tolist(), skip_special_tokens=True)


@contextmanager
def _inference(model) -> Iterator[None]:
    """Evaluation mode, with the composed rotary embedding and attention.

    PaddleNLP's fused rotary embedding refuses a key/value cache: it takes no positions. Its call of
    flash_attention_npu has no form for one new token against a cache.
    """
    training, flash = model.training, model.config.use_flash_attention
    attentions = [layer for layer in model.sublayers() if hasattr(layer, "use_fused_rope")]
    rope = [layer.use_fused_rope for layer in attentions]
    model.eval()
    model.config.use_flash_attention = False
    for layer in attentions:
        layer.use_fused_rope = False
    try:
        yield
    finally:
        for layer, fused in zip(attentions, rope, strict=True):
            layer.use_fused_rope = fused
        model.config.use_flash_attention = flash
        model.train() if training else model.eval()
