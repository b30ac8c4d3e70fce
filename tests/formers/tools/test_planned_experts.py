"""The planner's memory of PaddleFormers' MoE models with expert parallelism, against dry runs."""

import pytest
import run_inputs
from dry_runs import followed

from llm_npu.plan import trainer
from llm_npu.plan.layout import Layout
from llm_npu.plan.memory_model.memory import peak
from llm_npu.plan.shape import ModelShape

pytestmark = pytest.mark.slow
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 64,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 384,
}
QWEN3 = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
ERNIE = {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2}
ERNIE |= {"moe_num_shared_experts": 1, "moe_layer_start_index": 1}
DEEPSEEK = {
    **{"model_type": "deepseek_v3", "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1},
    **{"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    **{"routed_scaling_factor": 1.0, "q_lora_rank": 128, "kv_lora_rank": 64},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}
OF_2 = {"cards": 2, "expert_parallel_degree": 2}
SEQUENCE = {"tensor_parallel_degree": 2, "sequence_parallel": True}
RUNS = {
    "Qwen3-MoE": (QWEN3, OF_2),
    "Qwen3-MoE, recompute": (QWEN3, {**OF_2, "recompute": True}),
    "Qwen3-MoE, sharding stage 1": (QWEN3, {**OF_2, "cards": 4, "sharding": "stage1"}),
    "Qwen3-MoE, sequence parallel": (QWEN3, {**OF_2, **SEQUENCE}),
    "Qwen3-MoE, sequence parallel, many tokens": (
        QWEN3,
        {**OF_2, **SEQUENCE, "per_device_train_batch_size": 16},
    ),
    "ERNIE-4.5-MoE": (ERNIE, OF_2),
    "ERNIE-4.5-MoE, sequence parallel": (ERNIE, {**SEQUENCE, "cards": 4, "expert_parallel_degree": 4}),
    "ERNIE-4.5-MoE, pipeline": (
        ERNIE,
        {**OF_2, "cards": 4, "pipeline_parallel_degree": 2, "global_batch_size": 8},
    ),
    "DeepSeek-V3": (DEEPSEEK, OF_2),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_prediction_is_within_3_percent_of_a_dry_run(name, tmp_path):
    fields, degrees = RUNS[name]
    inputs = run_inputs.inputs(tmp_path, **{**SIZES, **fields})
    shape = ModelShape.of(str(inputs["model_name_or_path"]))
    layout = Layout(**{"max_seq_length": 256, "per_device_train_batch_size": 2, **degrees})
    trainer.check(shape, layout)
    expected = followed(shape, layout, inputs, tmp_path)
    assert peak(shape, layout).peak_memory_bytes == pytest.approx(expected, rel=0.03)
