"""FusedAdamW in PaddleFormers' trainer against upstream AdamW, and with offload (adamw_runs.py)."""

import pytest
import run_inputs
from fused_models import adamw_runs
from fused_models.adamw_runs import FLOAT32, OFFLOADED, SFT
from small_runs import fields

pytestmark = pytest.mark.slow
FLOAT16 = "--fp16 --scale_loss 230000"  # too large for one of the steps; half of it is right for all
LORA = "--finetuning_type lora --lora_rank 4"
SHARDED = "--sharding stage1"
TENSOR = "--tensor_parallel_degree 2"
STAGES = "--pipeline_parallel_degree 2"
METHODS = {  # [processes, flags]
    "one process": [1, ""],
    "one process, float16": [1, FLOAT16],
    "one process, float32": [1, FLOAT32],
    "one process, LoRA": [1, LORA],
    "data parallel": [2, ""],
    "sharding stage 1": [2, SHARDED],
    "sharding stage 1, float16": [2, f"{SHARDED} {FLOAT16}"],
    "sharding stage 1, LoRA": [2, f"{SHARDED} {LORA}"],
    "sharding stage 2": [2, "--sharding stage2"],
    "sharding stage 3": [2, f"--sharding stage3 {FLOAT32}"],
    "tensor parallel": [2, TENSOR],
    "sequence parallel": [2, f"{TENSOR} --sequence_parallel true"],
    "pipeline": [2, STAGES],
    "pipeline, float16": [2, f"{STAGES} {FLOAT16}"],
}
OFFLOAD_METHODS = {
    "one process, float32": [1, FLOAT32],
    "one process, SFT": [1, SFT],
    "data parallel": [2, ""],
    "sharding stage 1": [2, SHARDED],
    "sharding stage 1, SFT, LoRA": [2, f"{SHARDED} {SFT} {LORA}"],
    "sequence parallel": [2, f"{TENSOR} --sequence_parallel true"],
    "pipeline": [2, STAGES],
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return adamw_runs.arguments(folder, **fields("qwen3"))


@pytest.mark.parametrize("method", METHODS)
def test_both_optimizers_train_alike_and_resume_each_other(method, arguments, tmp_path):
    processes, flags = METHODS[method]
    folder = adamw_runs.train(processes, flags, tmp_path / "runs", arguments)
    adamw_runs.assert_equal(folder)
    adamw_runs.assert_named(folder)


@pytest.mark.parametrize("method", OFFLOAD_METHODS)
def test_offload_is_the_same_bit_for_bit(method, arguments, tmp_path):
    processes, flags = OFFLOAD_METHODS[method]
    flags = flags.format(conversations=run_inputs.conversations(tmp_path / "sums"))
    folder = adamw_runs.train(processes, flags, tmp_path / "runs", arguments, OFFLOADED)
    adamw_runs.assert_equal(folder, OFFLOADED)
