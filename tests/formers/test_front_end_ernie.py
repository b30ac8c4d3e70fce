"""The SFT command of ERNIE's docs/devices/README_NPU.md on virtual ranks: as published, then fused.

It needs a checkout of ERNIE on the path of an interpreter with what it requires, which LLM_NPU_ERNIE_PYTHON
names; docs/formers.md says how to make one. The wheels of erniekit lack train.py, and from 1.1.0 on the
package ``ernie`` as well.
"""

import os
import shlex
import subprocess
from pathlib import Path

import front_ends
import pytest
from front_ends import ELSEWHERE, HERE, STEPS, finished

pytestmark = pytest.mark.slow

PYTHON = os.environ.get("LLM_NPU_ERNIE_PYTHON")
# README_NPU.md's, with the paths, sizes and rates of a short run. Some flags come twice there, too.
COMMAND = """
    --logging_dir $folder/vdl --model_name_or_path $model --output_dir $folder/checkpoint
    --per_device_train_batch_size 1 --per_device_eval_batch_size 1
    --train_dataset_path $model/sft-train.jsonl --train_dataset_prob "1.0" --train_dataset_type "erniekit"
    --eval_dataset_path $model/sft-eval.jsonl --eval_dataset_prob "1.0" --eval_dataset_type "erniekit"
    --max_steps $steps --max_evaluate_steps 10000 --num_train_epochs 1 --save_steps 10000000 --logging_steps 1
    --eval_steps 500 --weight_decay 0.01 --do_train --do_eval --evaluation_strategy steps
    --tensor_parallel_degree 2 --pipeline_parallel_degree $stages --sharding_parallel_degree 1
    --sharding stage1
    --max_seq_len 256 --seed 23 --gradient_accumulation_steps 2 --warmup_steps 2 --weight_decay 0.1
    --learning_rate 4e-3 --min_lr 4e-4 --num_samples_each_epoch 500 --bf16 --fp16_opt_level O2
    --disable_tqdm True --recompute 1 --recompute_granularity "full"
    --dataloader_num_workers 1 --distributed_dataloader 0
    --amp_custom_white_list
    "lookup_table" "lookup_table_v2" "flash_attn" "matmul" "matmul_v2" "fused_gemm_epilogue"
    --amp_custom_black_list "reduce_sum" "softmax_with_cross_entropy" "c_softmax_with_cross_entropy"
    "elementwise_div" "sin" "cos"
    --use_flash_attention 1 --use_sparse_head_and_loss_fn 1 $row_indices 1
    --pipeline_parallel_config
    "enable_delay_scale_loss enable_release_grads disable_batch_p2p_comm  disable_partial_send_recv"
    --greedy_intokens 1 --sequence_parallel 1 --release_grads 1 --moe_group "mp"
    --moe_multimodal_dispatch_use_allgather "v2-alltoall-unpad" --adam_beta1 0.9 --adam_beta2 0.95
    --adam_epsilon 1e-8 --amp_master_grad 1 --fuse_rope 0 --disable_ckpt_quant 1
    --recompute_use_reentrant True --unified_checkpoint_config "async_save"
    --device "npu" --use_sparse_flash_attn False
    --use_fused_head_and_loss_fn --use_sparse_head_and_loss_fn --offload_optim --moe_use_aux_free False
    --fuse_rms_norm False --moe_multimodal_dispatch_use_allgather ""
"""
VARIABLES = {
    "FLAGS_set_to_1d": "False",
    "NVIDIA_TF32_OVERRIDE": "0",
    "FLAGS_dataloader_use_file_descriptor": "False",
    "FLAGS_allocator_strategy_kernel": "auto_growth",
    "FLAGS_npu_jit_compile": "0",
}
FLOAT32 = ["--bf16", "0", "--amp_master_grad", "0"]
SCRIPT = "examples/post-training/sft/train.py"
WORDS = front_ends.of_page(SCRIPT)
PREFIX, FUSED = WORDS[: WORDS.index("paddle.distributed.launch") - 1], WORDS[WORDS.index(SCRIPT) + 1 :]


@pytest.fixture(scope="module")
def checkout() -> Path:
    """The folder of ERNIE that the interpreter finds."""
    if PYTHON is None:
        pytest.skip("LLM_NPU_ERNIE_PYTHON names no interpreter that has ERNIE")
    program = "import ernie; print(list(ernie.__path__)[0])"
    result = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    return Path(result.stdout.strip()).parent


@pytest.fixture(scope="module")
def run(run_python, checkout, tmp_path_factory):
    """A function that runs the command with ``prefix`` in front, and arguments behind it.

    ``stages``: of the pipeline, each with two ranks.
    """
    model = tmp_path_factory.mktemp("ernie")
    result = run_python("-c", ELSEWHERE, PYTHON, HERE / "make_tiny_ernie.py", model, cwd=checkout)
    assert result.returncode == 0, result.stderr
    # Later versions of ERNIE say startend.
    start_rows = "use_attn_mask_start_row_indices" in (checkout / SCRIPT).read_text()

    def run(folder, prefix, *changes, stages):
        devices = ",".join(map(str, range(2 * stages)))
        sizes = {
            "$folder": str(folder),
            "$model": str(model),
            "$steps": str(STEPS),
            "$stages": str(stages),
            "$row_indices": f"--use_attn_mask_{'start' if start_rows else 'startend'}_row_indices",
        }
        command = COMMAND
        for name, value in sizes.items():
            command = command.replace(name, value)
        logs = folder / "log"
        done = run_python(
            *("-c", ELSEWHERE, PYTHON, *prefix, "-m", "paddle.distributed.launch"),
            *("--log_dir", logs, "--npus", devices, "--master", f"127.0.0.1:{front_ends.free_port()}"),
            *("--nnodes", 1, SCRIPT, *shlex.split(command), *changes),
            cwd=checkout,
            **VARIABLES,
            **front_ends.variables(logs, PYTHON, devices),
        )
        return finished(done, logs)

    return run


@pytest.mark.parametrize("stages", [1, 2])
def test_as_published_then_fused(run, tmp_path, stages):
    unmodified = ("-m", "virtual_npu")
    unfused = run(tmp_path / "unfused", unmodified, stages=stages)
    reference = run(tmp_path / "float32", unmodified, *FLOAT32, stages=stages)
    fused = run(tmp_path / "fused", PREFIX, *FUSED, stages=stages)
    front_ends.assert_tracks(fused.losses, unfused.losses, reference.losses)
    assert fused.losses[-1] < 0.9 * fused.losses[0]
    assert unfused.ran == [{}] * 2 * stages
    for rank in fused.ran:
        assert rank["rms_norm", "bfloat16"] == "ascend, rms_norm_npu"
        assert rank["flash_attention", "bfloat16"] == "ascend, flash_attention_npu, causal, varlen"
        assert rank["rotary_mul", "bfloat16"].startswith("ascend, composition of the card's kernels")
