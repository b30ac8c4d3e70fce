"""--overlap of scripts/run_llama_npu.py: the same losses as with fleet's own layers."""

import json

import pytest
from places import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "run_llama_npu.py"
ARGUMENTS = (
    *("--nproc", "2", "--tensor_parallel_degree", "2", "--sequence_parallel", "true"),
    *("--model_name_or_path", "llama-tiny", "--max_steps", "3", "--max_seq_length", "64"),
    *("--evaluation_strategy", "no", "--save_strategy", "no", "--logging_steps", "1"),
)


def test_overlapped_layers_train_as_the_upstream_ones(run_python, tmp_path):
    losses = {}
    for overlap in (None, "auto", "pipelined:2"):
        folder = tmp_path / str(overlap)
        flags = ("--overlap", overlap) if overlap else ()
        shared = ("--output_dir", folder, "--data_cache", tmp_path / "cache")
        done = run_python(SCRIPT, *ARGUMENTS, *shared, *flags, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        line = "overlap: all_gather_matmul 12 of 12, matmul_reduce_scatter 12 of 12"
        assert (line in done.stdout) == (overlap is not None)
        assert ("overlap: all_gather:" in done.stdout) == (overlap == "auto")  # the planner's choices
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses[overlap] = [record["loss"] for record in records if "loss" in record]
    assert len(losses[None]) == 3
    assert (
        losses["auto"] == losses["pipelined:2"] == losses[None]
    )  # bfloat16: the same sums, the same roundings
    refused = run_python(SCRIPT, *ARGUMENTS, "--overlap", "fast", "--output_dir", tmp_path / "none")
    assert refused.returncode == 2
    assert "backend 'fast'; accepted: " in refused.stderr
