"""FusedAdamW in PaddleNLP's trainer, by every method, against upstream AdamW (adamw_runs.py)."""

import pytest
from fused_models import adamw_runs
from fused_models.adamw_runs import FLOAT16, FLOAT32

pytestmark = pytest.mark.slow
TENSOR, SEQUENCE = "--tensor_parallel_degree 2", "--tensor_parallel_degree 2 --sequence_parallel true"
AUTO = "--enable_auto_parallel --fuse_attention_qkv false --fuse_attention_ffn false"
LORA = "--finetuning_type lora --lora_rank 4"
# [processes, flags]
METHODS = {
    "one process": [1, ""],
    "one process, float16": [1, FLOAT16],
    "one process, float32, no clipping": [1, f"{FLOAT32} --max_grad_norm 0"],
    "one process, O1": [1, "--fp16_opt_level O1 --amp_master_grad false"],
    "one process, LoRA": [1, LORA],
    "data parallel": [2, ""],
    "sharding stage 1": [2, "--sharding stage1"],
    "sharding stage 1, split_param": [2, "--sharding stage1 --sharding_parallel_config split_param"],
    "sharding stage 1, float16": [2, f"--sharding stage1 {FLOAT16}"],
    "sharding stage 1, LoRA": [2, f"--sharding stage1 {LORA}"],
    "sharding stage 2": [2, "--sharding stage2"],
    "sharding stage 2, float16": [2, f"--sharding stage2 {FLOAT16}"],
    "sharding stage 3": [2, f"--sharding stage3 {FLOAT32}"],
    "sharding stage 3, bfloat16": [2, "--sharding stage3"],
    "tensor parallel": [2, TENSOR],
    "tensor parallel, float16": [2, f"{TENSOR} {FLOAT16}"],
    "sequence parallel": [2, SEQUENCE],
    "pipeline": [2, "--pipeline_parallel_degree 2"],
    "pipeline, float16": [2, f"--pipeline_parallel_degree 2 {FLOAT16}"],
    "auto-parallel, tensor parallel": [2, f"{AUTO} {TENSOR}"],
    "auto-parallel, sharding stage 2": [2, f"{AUTO} --sharding stage2 {FLOAT32}"],
    "auto-parallel, pipeline": [2, f"{AUTO} --pipeline_parallel_degree 2 {FLOAT32}"],
    "static, tensor parallel": [2, f"{AUTO} --to_static {TENSOR}"],
    "static, sharding stage 1": [2, f"{AUTO} --to_static --sharding stage1"],
    "static, pipeline": [2, f"{AUTO} --to_static --pipeline_parallel_degree 2 {FLOAT32}"],
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return adamw_runs.arguments(folder, num_attention_heads=4, tie_word_embeddings=False)


@pytest.mark.parametrize("method", METHODS)
def test_both_optimizers_train_alike_and_resume_each_other(method, arguments, tmp_path):
    processes, flags = METHODS[method]
    folder = adamw_runs.train(processes, flags, tmp_path / "runs", arguments)
    adamw_runs.assert_equal(folder)
    adamw_runs.assert_named(folder)
