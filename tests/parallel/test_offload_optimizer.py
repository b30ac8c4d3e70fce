"""--offload_optimizer by every method: the bits, checkpoints and resumes of the run without it."""

import pytest
import run_inputs
from fused_models import adamw_runs
from fused_models.adamw_runs import FLOAT16, FLOAT32, SFT

pytestmark = pytest.mark.slow
TENSOR = "--tensor_parallel_degree 2"
LORA = "--finetuning_type lora --lora_rank 4"
RUNS = {  # {name: (the run whose checkpoint it begins with, flags)}
    "without": (None, ""),
    "device": (None, "--offload_optimizer"),
    "without, then device": ("without", "--offload_optimizer device"),
    "device, then without": ("device", ""),
}
# [processes, flags]
METHODS = {
    "one process": [1, ""],
    "one process, float32": [1, FLOAT32],
    "one process, float16": [1, FLOAT16],
    "one process, O1": [1, "--fp16_opt_level O1 --amp_master_grad false"],
    "one process, no clipping": [1, "--max_grad_norm 0"],
    "one process, LoRA": [1, LORA],
    "one process, SFT": [1, SFT],
    "data parallel": [2, ""],
    "sharding stage 1": [2, "--sharding stage1"],
    "sharding stage 1, float32": [2, f"--sharding stage1 {FLOAT32}"],
    "sharding stage 1, split_param": [2, "--sharding stage1 --sharding_parallel_config split_param"],
    "sharding stage 1, LoRA": [2, f"--sharding stage1 {LORA}"],
    "sharding stage 1, SFT, LoRA": [2, f"--sharding stage1 {SFT} {LORA}"],
    "tensor parallel": [2, TENSOR],
    "sequence parallel": [2, f"{TENSOR} --sequence_parallel true"],
    "pipeline": [2, "--pipeline_parallel_degree 2"],
    "pipeline, float16": [2, f"--pipeline_parallel_degree 2 {FLOAT16}"],
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return adamw_runs.arguments(folder, num_attention_heads=4, tie_word_embeddings=False)


@pytest.mark.parametrize("method", METHODS)
def test_the_run_is_the_same_bit_for_bit(method, arguments, tmp_path):
    processes, flags = METHODS[method]
    flags = flags.format(conversations=run_inputs.conversations(tmp_path / "sums"))
    folder = adamw_runs.train(processes, flags, tmp_path / "runs", arguments, RUNS)
    adamw_runs.assert_equal(folder, RUNS)
