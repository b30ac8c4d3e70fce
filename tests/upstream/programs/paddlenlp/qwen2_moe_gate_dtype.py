"""A Qwen2-MoE that was trained with AMP O2 cannot generate text.

AMP O2 leaves the gate's weights in float32 (``_cast_to_low_precision = False``). Outside of
``auto_cast``, as in generation, ``F.linear`` gets bfloat16 activations and float32 weights, and refuses
them.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/qwen2_moe/modeling.py:771 `logits = F.linear(hidden_states, self.weight, None`
:error: ValueError: (InvalidArgument) The type of data we are trying to retrieve (float32) does not match ...
:should print:
    paddle.float32
:change:
    ``F.linear(hidden_states.cast(self.weight.dtype), self.weight)``: the scores are computed in float32
    anyway.
:workaround: llm_npu.patches.moe.fix_qwen2_moe_gate_dtype
"""

import paddle
from paddlenlp.transformers import Qwen2MoeConfig
from paddlenlp.transformers.moe_gate import PretrainedMoEGate
from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeGate

PretrainedMoEGate._priority = lambda gate, chosen, capacity: paddle.ones([3, 4, 1], "int32")
gate = Qwen2MoeGate(Qwen2MoeConfig(), 4, 8, top_k=2, drop_tokens=False)
_, weights, *_ = gate(paddle.ones([1, 3, 8], "bfloat16"))
print(weights.dtype)
