"""--offload_activations by every method: the bits of the run with recompute alone."""

import pytest
from fused_models import adamw_runs
from fused_models.adamw_runs import FLOAT16, FLOAT32, OFFLOADED

pytestmark = pytest.mark.slow
TENSOR = "--tensor_parallel_degree 2"
PIPELINE = "--pipeline_parallel_degree 2"
LORA = "--finetuning_type lora --lora_rank 4"
REENTRANT, HOOKS = "--recompute_use_reentrant true", "--recompute_use_reentrant false"
DROPOUT = "--attention_probs_dropout_prob 0.1 --hidden_dropout_prob 0.1"
# [processes, flags]
METHODS = {
    "one process, hooks": [1, HOOKS],
    "one process, PyLayer": [1, REENTRANT],
    "one process, float32": [1, FLOAT32],
    "one process, float16": [1, FLOAT16],
    "one process, O1": [1, "--fp16_opt_level O1 --amp_master_grad false"],
    "one process, unfused layers": [1, "--use_fused_rms_norm false --use_npu_fusion_attention false"],
    "one process, fused sums": [1, "--use_fused_add_rms_norm true"],
    "one process, LoRA": [1, LORA],
    "data parallel": [2, ""],
    "sharding stage 1": [2, "--sharding stage1"],
    "sharding stage 1, split_param": [2, "--sharding stage1 --sharding_parallel_config split_param"],
    "tensor parallel": [2, TENSOR],
    "sequence parallel": [2, f"{TENSOR} --sequence_parallel true"],
    "sequence parallel, PyLayer": [2, f"{TENSOR} --sequence_parallel true {REENTRANT}"],
    "Ulysses": [2, "--sep_parallel_degree 2"],
    "ring": [2, "--context_parallel_degree 2"],
    "pipeline": [2, PIPELINE],
    "pipeline, PyLayer": [2, f"{PIPELINE} {REENTRANT}"],
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return adamw_runs.arguments(folder, num_attention_heads=4, num_hidden_layers=4, tie_word_embeddings=False)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.paddlenlp) if name in ("Ulysses", "ring") else name
        for name in METHODS
    ],
)
def test_the_run_is_the_same_bit_for_bit(method, arguments, tmp_path):
    processes, flags = METHODS[method]
    folder = adamw_runs.train(processes, flags, tmp_path / "runs", arguments, OFFLOADED)
    adamw_runs.assert_equal(folder, OFFLOADED)
