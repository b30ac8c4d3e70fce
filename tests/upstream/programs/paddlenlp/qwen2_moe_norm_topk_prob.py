"""Qwen2-MoE ignores norm_topk_prob, so weights with that setting give other logits.

The block keeps ``config.norm_topk_prob`` for itself and does not pass it to its gate, which normalises
by its own ``norm_topk_prob``, False.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/qwen2_moe/modeling.py:784 `gate = Qwen2MoeGate(`
    paddlenlp/transformers/moe_gate.py:210 `self.norm_topk_prob = kwargs.pop("norm_topk_prob", False)`
:prints:
    False
:should print:
    True
:change: Pass ``norm_topk_prob=config.norm_topk_prob`` to ``Qwen2MoeGate``.
:workaround: llm_npu.patches.moe.fix_qwen2_moe_norm_topk_prob, llm_npu/surgery/replacements/moe.py
"""

from paddlenlp.transformers import Qwen2MoeConfig
from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeSparseMoEBlock

config = Qwen2MoeConfig(hidden_size=8, intermediate_size=8, num_experts=4, norm_topk_prob=True)
print(Qwen2MoeSparseMoEBlock(config).gate.norm_topk_prob)
