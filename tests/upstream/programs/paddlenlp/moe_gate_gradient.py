"""The gradient of an MoE gate is wrong by about 1 for each expert that a token chose.

``PretrainedMoEGate.topkgating`` casts the weights to the mask that dispatches tokens without detaching
it. The mask's gradient flows back through the two casts: cast to bool it is True wherever it is not 0,
and that cast to float is 1. ``top1gating`` and ``top2gating`` detach it. Here an input that no expert
uses gets no gradient, unless by this path.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/moe_gate.py:574 `dispatch_mask = combine_weights.cast(paddle.bool)`
:prints:
    [1.0, 1.0]
:should print:
    [0.0, 0.0]
:change: ``dispatch_mask = combine_weights.cast(paddle.bool).detach()``, as in line 418.
:workaround: llm_npu.patches.moe.fix_moe_gate_gradient
"""

import paddle
from paddlenlp.transformers.moe_gate import PretrainedMoEGate

# the priority without the defect of int64 x int32: both experts take the only token
PretrainedMoEGate._priority = lambda gate, chosen, capacity: paddle.ones([1, 2, 1], "int32")
gate = PretrainedMoEGate(None, num_experts=2, expert_hidden_size=8, top_k=2, drop_tokens=False)
scores = paddle.to_tensor([[[0.4, 0.6]]], stop_gradient=False)
_, weights, mask, *_ = gate.topkgating(scores)
tokens = mask.cast("float32") * 3.0  # as MoELayer does
(tokens.sum() + 0.0 * weights.sum()).backward()
print(scores.grad[0, 0].tolist())
