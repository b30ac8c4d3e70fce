"""Qwen2-MoE fails in its gate at int64 x int32.

From Paddle 3.2 on two integer types are not promoted. ``paddle.cumsum`` of an int32 tensor is int64, and
``PretrainedMoEGate._priority`` multiplies it by the int32 tensor.

:versions: paddlenlp 3.0.0b4 with paddlepaddle 3.3.1
:device: cpu
:at:
    paddlenlp/transformers/moe_gate.py:239 `token_priority = paddle.cumsum(expert_mask, axis=0`
:error: TypeError: (InvalidType) Type promotion only support calculations between floating-point ...
:should print:
    [[[1]], [[1]]]
:change: ``paddle.cumsum(expert_mask, axis=0, dtype="int32")``.
:workaround: llm_npu.patches.moe.fix_moe_gate_int64
"""

import paddle
from paddlenlp.transformers.moe_gate import PretrainedMoEGate

gate = PretrainedMoEGate(None, num_experts=1, expert_hidden_size=8, top_k=1)
print(gate._priority(paddle.to_tensor([[0], [0]]), capacity=1).tolist())
