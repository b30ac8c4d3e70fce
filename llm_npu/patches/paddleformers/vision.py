"""Patches for the vision towers of PaddleFormers' models."""

from __future__ import annotations

import functools

from paddle.distributed.fleet.utils import recompute


@functools.cache
def fix_qwen3_vl_recompute() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen3-VL cannot recompute a vision tower that is trained ("got an unexpected
    keyword argument 'attn_mask_startend_row_indices'").

    ``recompute_training_full`` lacks the argument that the tower passes. The patch adds it.
    """
    from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLVisionModel

    def recompute_training_full(
        self,
        layer_module,
        hidden_states,
        cu_seqlens,
        rotary_pos_emb=None,
        position_embeddings=None,
        attn_mask_startend_row_indices=None,
    ):
        inputs = cu_seqlens, rotary_pos_emb, position_embeddings, attn_mask_startend_row_indices
        return recompute(layer_module, hidden_states, *inputs)

    Qwen3VLVisionModel.recompute_training_full = recompute_training_full
