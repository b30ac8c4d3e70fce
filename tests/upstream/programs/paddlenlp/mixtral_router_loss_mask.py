"""Mixtral's router loss fails with an attention mask of three dims.

The model accepts masks [B, S, S]. ``load_balancing_loss_func`` computes the loss for masks of two dims and of
four dims; for others it uses variables that it has not set.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/mixtral/modeling.py:110 `if len(attention_mask.shape) == 2:`
:error: UnboundLocalError: ...tokens_per_expert...
:should print: a loss
:change: ``if attention_mask is None or len(attention_mask.shape) != 2`` in the branch above.
:workaround: llm_npu.patches.moe.fix_mixtral_router_loss_mask
"""

import paddle
from paddlenlp.transformers.mixtral.modeling import load_balancing_loss_func

logits = (paddle.zeros([2 * 4, 8]),)
load_balancing_loss_func(logits, 8, 2, paddle.ones([2, 4, 4], "bool"))
print("a loss")
