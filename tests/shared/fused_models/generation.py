"""Greedy text: with a key and value cache, from left-padded prompts of two lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import paddle

from fused_models.comparison import Batch, array, loss_and_logits, random_batch

if TYPE_CHECKING:
    from fused_models.families import Family

PROMPT, NEW = 8, 8
SHORTER_BY = 3


def greedy(family: Family, model, operator: str | None = None) -> list[list[int]]:
    """The tokens that follow two prompts."""
    ids = np.concatenate([random_batch(seed=seed).ids[:1, :PROMPT] for seed in (1, 2)])
    if family.criterion is not None:
        return _without_cache(family, model, ids, operator)
    mask = np.ones_like(ids)
    ids[1, SHORTER_BY:] = ids[1, :-SHORTER_BY].copy()
    ids[1, :SHORTER_BY], mask[1, :SHORTER_BY] = 0, 0
    if not family.caches(operator):
        return _without_cache(family, model, ids, operator, mask)
    with paddle.no_grad():
        tokens, _ = model.generate(
            input_ids=paddle.to_tensor(ids),
            attention_mask=paddle.to_tensor(mask),
            max_new_tokens=NEW,
            decode_strategy="greedy_search",
            use_cache=True,
            eos_token_id=2,
            pad_token_id=0,
        )
    return tokens.tolist()


def _without_cache(family: Family, model, ids, operator: str | None, mask=None) -> list[list[int]]:
    """The whole text again for every token, as in the models for auto-parallel training."""
    for _ in range(NEW):
        with paddle.no_grad():
            _, logits = loss_and_logits(family, model, Batch(ids, ids, mask), operator)
        following = array(logits)[:, -1].argmax(-1)
        ids = np.concatenate([ids, following[:, None]], axis=1)
        mask = None if mask is None else np.concatenate([mask, np.ones_like(mask[:, :1])], axis=1)
    return ids[:, PROMPT:].tolist()
