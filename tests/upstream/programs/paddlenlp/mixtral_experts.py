"""Mixtral fails as soon as an expert gets tokens.

From Paddle 3.1 on ``paddle.where(condition)`` returns indices of shape [n], before it returned [n, 1].
The block multiplies an expert's rows [n, H] by weights of shape [n]. Where n equals H it computes
something wrong instead.

:versions: paddlenlp 3.0.0b4 with paddlepaddle 3.3.1
:device: cpu
:at:
    paddlenlp/transformers/mixtral/modeling.py:532 `current_hidden_states = expert_layer(current_state)`
:error: ValueError: (InvalidArgument) Broadcast dimension mismatch...
:should print:
    [1, 3, 8]
:change:
    Multiply by weights of shape [n, 1]: ``routing_weights[top_x.flatten(),
    idx.flatten()].unsqueeze(-1)``, which is right for both releases' ``paddle.where``.
:workaround: llm_npu.patches.moe.fix_mixtral_expert_weights
"""

import paddle
from paddlenlp.transformers import MixtralConfig
from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock

block = MixtralSparseMoeBlock(MixtralConfig(hidden_size=8, intermediate_size=8, num_local_experts=4))
print(block(paddle.ones([1, 3, 8]))[0].shape)
