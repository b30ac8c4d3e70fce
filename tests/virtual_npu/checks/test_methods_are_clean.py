"""Trainings of the methods table run under all device checks without a finding."""

import pytest
from places import ROOT

pytestmark = pytest.mark.slow

SMALL = (
    *("--max_steps", "2", "--num_hidden_layers", "2", "--max_seq_length", "64"),
    *("--per_device_train_batch_size", "2", "--check_device", "race,init,memory,sync"),
)
TENSOR = "--tensor_parallel_degree 2"
METHODS = {
    "one process": "",
    "recompute, accumulation": "--recompute true --gradient_accumulation_steps 2",
    "float16": "--fp16 true --bf16 false",
    "offload": "--offload_optimizer true --offload_activations true",
    "data": "--nproc 2",
    "tensor": f"--nproc 2 {TENSOR}",
    "tensor, overlap": f"--nproc 2 {TENSOR} --sequence_parallel true --overlap auto",
    "sharding stage 1": "--nproc 2 --sharding stage1",
    "sharding stage 2": "--nproc 2 --sharding stage2",
    "sharding stage 3": "--nproc 2 --sharding stage3",
    "pipeline": "--nproc 2 --pipeline_parallel_degree 2 --gradient_accumulation_steps 2",
    "DualPipeV": "--nproc 2 --pipeline_parallel_degree 2 --gradient_accumulation_steps 4 "
    "--num_hidden_layers 4 --pipeline_schedule dualpipev",
    "Ulysses": "--nproc 2 --sep_parallel_degree 2",
    "ring": "--nproc 2 --context_parallel_degree 2",
    "auto-parallel": f"--nproc 2 --enable_auto_parallel {TENSOR}",
    "auto-parallel, static": f"--nproc 2 --enable_auto_parallel {TENSOR} --to_static",
}


@pytest.mark.parametrize("method", METHODS)
def test_no_finding(run_python, tmp_path, method):
    done = run_python(
        *(str(ROOT / "scripts/run_llama_npu.py"), *SMALL, *METHODS[method].split()),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "loss " in done.stdout and "host waits: " in done.stderr
