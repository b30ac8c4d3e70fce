"""Very small models of every family, and what ``scripts/run_llama_npu.py`` is told to train them."""

import run_inputs
from places import ROOT

from llm_npu.models.families import FAMILIES

SCRIPT = ROOT / "scripts/run_llama_npu.py"
STEPS = 12
SIZES = {"hidden_size": 256, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
# Families beside the dense ones: fields of their smallest models.
MORE = {
    "qwen3": {"head_dim": 64},
    "qwen3_moe": {"head_dim": 64, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2},
    "ernie4_5_moe": {
        **{"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64},
        "router_aux_loss_coef": 1.0,  # a hundred times the default: its gradient is not lost in the others
    },
}
RUN = {
    "split": "50,50,0",
    "max_seq_length": 32,
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "save_steps": 6,
    "eval_steps": STEPS,
    "max_evaluate_steps": 2,
    "learning_rate": "5e-3",
}
SOURCES = ("bisect.py", "copy.py", "heapq.py", "random.py")


def fields(family: str) -> dict[str, object]:
    """Of the smallest model."""
    tiny = FAMILIES[family].presets[FAMILIES[family].tiny]
    kept = {name: value for name, value in tiny.items() if name not in run_inputs.LLAMA}
    if "rope_scaling" in kept:  # its factor is that of the positions
        kept["max_position_embeddings"] = tiny["max_position_embeddings"]
    return {**kept, **SIZES, **MORE.get(family, {}), "model_type": family}
