"""Qwen2-MoE fails with output_router_logits=True.

Its blocks return the auxiliary losses of their gates, scalars, and ``load_balancing_loss_func`` takes
them for logits of shape [tokens, experts].

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/qwen2_moe/modeling.py:814 `return final_hidden_states, l_aux`
    paddlenlp/transformers/qwen2_moe/modeling.py:1713 `aux_loss = load_balancing_loss_func(`
:error: ValueError: (InvalidArgument) The axis is expected to be in range of [0, 0), but got 0...
:should print:
    2.0
:change:
    Return the mean of the gates' losses, ``paddle.stack(router_losses).mean()``, or let the block return
    its logits.
:workaround: llm_npu.patches.moe.fix_qwen2_moe_auxiliary_loss
"""

import paddle
from paddlenlp.transformers.qwen2_moe.modeling import load_balancing_loss_func

# what the blocks of a model with two layers return, and the model passes on
losses = paddle.to_tensor(1.5), paddle.to_tensor(2.5)
print(float(load_balancing_loss_func(losses, num_experts=4, top_k=2)))
