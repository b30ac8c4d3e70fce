"""Qwen2-MoE loses experts beside a data-parallel group of fleet, also without use_expert_parallel.

``MoELayer`` distributes its experts over that group by default, and ``Qwen2MoeSparseMoEBlock`` does not
choose another. With pipelines or split sequences, a rank then has None for the experts of the others, whose
weights are missing in its checkpoints.

:versions: paddlenlp 3.0.0b4
:device: npu, 2 processes
:at:
    paddlenlp/transformers/moe_layer.py:147 `moe_group: str = "data",`
:prints:
    own experts: [True, True, False, False]
:should print:
    own experts: [True, True, True, True]
:change: Pass ``moe_group="dummy"`` to ``MoELayer`` unless ``use_expert_parallel`` is set.
:workaround: llm_npu.patches.moe.fix_qwen2_moe_groups
"""

from paddle.distributed import fleet
from paddlenlp.transformers import Qwen2MoeConfig
from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeSparseMoEBlock

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
sizes = {"hidden_size": 8, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
block = Qwen2MoeSparseMoEBlock(Qwen2MoeConfig(num_experts=4, num_experts_per_tok=2, **sizes))
print("own experts:", [expert is not None for expert in block.experts])
