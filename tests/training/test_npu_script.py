"""The pre-training command line of PaddleNLP's llm/npu/llama (llama_npu_opt_ppt.sh), at a tiny size."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from places import ROOT

import virtual_npu
from llm_npu.config import ineffective_variables
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import trained_tokenizer
from llm_npu.models.library import names
from llm_npu.training import metrics

SCRIPT = ROOT / "scripts/run_llama_npu.py"
EXPORTED = {
    "MC2": "1",
    "GLOG_v": "0",
    "FLAGS_npu_storage_format": "1",
    "HCCL_INTRA_PCIE_EHABLE": "0",
    "HCCL_INTRA_ROCE_ENABLE": "1",
    "FLAGS_allocator_strategy": "naive_best_fit",
    "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "FLAGS_NPU_MC2": "1",
    "MC2_Recompute": "1",
    "FLAGS_use_stride_kernel": "0",
    "HCCL_OP_BASE_FFTS_MODE_ENABLE": "TRUE",
    "MULTI_STREAM_MEMORY_REUSE": "1",
}
# All but the size of the work: the model, its tokenizer, the tokens of a sample, the number of micro batches.
FLAGS = shlex.split(
    "--split 949,50,1 --per_device_train_batch_size 2 --per_device_eval_batch_size 1 --use_flash_attention 1 "
    "--use_fused_rms_norm 1 --virtual_pp_degree 1 --learning_rate 0.00001 --min_learning_rate 0.000001 "
    "--max_steps 2 --decay_steps 2000 --save_steps 2000 --seed 100 --weight_decay 0.01 --warmup_steps 20 "
    "--max_grad_norm 1.0 --logging_steps 1 --dataloader_num_workers 1 --eval_steps 1001 "
    "--tensor_parallel_degree 4 --disable_tqdm true --continue_training 0 --do_train --device npu "
    "--enable_linear_fused_grad_add false --fuse_attention_qkv true --fuse_attention_ffn true "
    "--use_fused_rope true --recompute_use_reentrant true --bf16 --fp16_opt_level O2 --amp_master_grad "
    "--load_sharded_model true --save_sharded_model true --pipeline_parallel_degree 1 --ignore_data_skip 0 "
    "--force_reshard_pp true --tensor_parallel_config 'enable_mp_async_allreduce enable_mp_skip_c_identity' "
    "--sequence_parallel 1 --pipeline_parallel_config disable_partial_send_recv --sharding stage1 "
    "--sharding_parallel_degree 2"
)
MODEL = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 1024,  # the fused products with collectives take 256 columns or more of each of 4 ranks
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
}


@pytest.mark.slow
@pytest.mark.paddlenlp
def test_the_script_of_paddlenlp_runs(run_python, tmp_path):
    text, model = tmp_path / "pre-data", tmp_path / "model"
    text.mkdir()
    for name in ("bisect.py", "heapq.py", "copy.py", "random.py"):
        shutil.copy(Path(os.__file__).parent / name, text)
    shutil.copytree(trained_tokenizer(corpus(text), 512, str(tmp_path)), model)
    (model / "config.json").write_text(json.dumps(MODEL))
    sizes = ["--model_name_or_path", model, "--tokenizer_name_or_path", model, "--max_seq_length", "64"]
    sizes += ["--gradient_accumulation_steps", "2", "--input_dir", text]
    places = ["--output_dir", tmp_path / "output", "--data_cache", tmp_path / "data_cache"]
    launcher = ["-u", "-m", "paddle.distributed.launch", "--log_dir", tmp_path / "log_8.0"]
    environment = virtual_npu.environment() | EXPORTED | {"OMP_NUM_THREADS": "1"}
    done = run_python(*launcher, SCRIPT, *sizes, *places, *FLAGS, timeout=900, **environment)
    log = (tmp_path / "log_8.0/workerlog.0").read_text()
    assert done.returncode == 0, log[-3000:] + done.stdout[-3000:] + done.stderr[-3000:]
    records = metrics.read(tmp_path / "output" / metrics.FILE)
    losses = [record["loss"] for record in records if "loss" in record]
    assert len(losses) == 2 and all(5 < loss < 8 for loss in losses)
    assert all(
        key in log for key in ("8 processes", "sharding stage1 2", "tensor parallel with sequence parallel 4")
    )
    for name in ("MC2", "MC2_Recompute", "HCCL_INTRA_PCIE_EHABLE", "MULTI_STREAM_MEMORY_REUSE"):
        assert f"{name} has no effect" in log
    for name in ("load_sharded_model", "pipeline_parallel_config", "recompute_use_reentrant"):
        assert f"--{name} has no effect" in log


def test_variables_that_change_nothing_are_named():
    without_effect = dict(ineffective_variables("virtual", EXPORTED))
    assert without_effect["MC2"] == f"{names.TITLE} reads FLAGS_NPU_MC2"
    assert "HCCL_INTRA_PCIE_ENABLE" in without_effect["HCCL_INTRA_PCIE_EHABLE"]
    assert {
        "FLAGS_npu_storage_format",
        "HCCL_INTRA_ROCE_ENABLE",
        "ASCEND_RT_VISIBLE_DEVICES",
    } <= without_effect.keys()
    read = {"FLAGS_NPU_MC2", "FLAGS_allocator_strategy", "FLAGS_use_stride_kernel", "GLOG_v"}
    assert not read & without_effect.keys()
    on_a_card = dict(ineffective_variables("card", EXPORTED))
    assert set(on_a_card) == {"MC2", "MC2_Recompute", "HCCL_INTRA_PCIE_EHABLE", "MULTI_STREAM_MEMORY_REUSE"}
    assert not ineffective_variables("virtual", {"ASCEND_TOOLKIT_HOME": "/usr/local/Ascend", "HOME": "/root"})
