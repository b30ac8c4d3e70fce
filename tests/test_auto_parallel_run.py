"""--enable_auto_parallel of the training script, on two processes, against one."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import run_inputs
from precision import ROUNDING

from llm_npu import metrics

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/run_llama_npu.py"
STEPS = 4
SPLIT = ("--nproc", 2, "--enable_auto_parallel")
UNFUSED = ("--disable_fused_options", "true")  # masks and positions, too, then go from stage to stage


@pytest.fixture(scope="module")
def train(run_python, tmp_path_factory):
    """A function that trains with some arguments; returns the output folder and what was printed."""
    folder = tmp_path_factory.mktemp("inputs")
    made = run_inputs.inputs(folder)

    def run(out: Path, *arguments) -> tuple[Path, str]:
        given = {
            **made,
            "output_dir": out,
            "max_seq_length": 32,
            "max_steps": STEPS,
            "logging_steps": 1,
            "eval_steps": STEPS,
            "save_steps": 2,
            "per_device_eval_batch_size": 3,
            "split": "80,20,0",
            "bf16": "false",
            "fuse_attention_qkv": "false",
            "fuse_attention_ffn": "false",
        }
        words = run_inputs.words(given)
        done = run_python(SCRIPT, *words, *arguments, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        return out, done.stdout

    return run


def recorded(folder: Path, name: str) -> list[float]:
    return [record[name] for record in metrics.read(folder / metrics.FILE) if name in record]


def losses(folder: Path) -> list[float]:
    return recorded(folder, "loss")


def norms(folder: Path) -> list[float]:
    return recorded(folder, "grad_norm")


def evaluated(folder: Path) -> list[float]:
    """The losses of evaluation, one in a run."""
    found = recorded(folder, "eval_loss")
    assert len(found) == 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ("--tensor_parallel_degree", 2, "--per_device_train_batch_size", 4),
        ("--sharding", "stage2", "--per_device_train_batch_size", 2, "--explain_parallel"),
        (
            "--pipeline_parallel_degree",
            2,
            "--per_device_train_batch_size",
            2,
            "--gradient_accumulation_steps",
            2,
            "--explain_parallel",
        ),
        (
            "--to_static",
            "--pipeline_parallel_degree",
            2,
            "--per_device_train_batch_size",
            2,
            "--gradient_accumulation_steps",
            2,
            *UNFUSED,
        ),
        ("--to_static", "--tensor_parallel_degree", 2, "--per_device_train_batch_size", 4),
        (
            "--to_static",
            "--sharding",
            "stage1",
            "--per_device_train_batch_size",
            1,
            "--gradient_accumulation_steps",
            2,
        ),
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_it_trains_as_one_process_and_resumes(train, tmp_path, method):
    same = UNFUSED if UNFUSED[0] in method else ()
    alone, _ = train(tmp_path / "alone", "--per_device_train_batch_size", 4, *same)
    split, printed = train(tmp_path / "split", *SPLIT, *method)
    bound = 4 * STEPS * ROUNDING["float32"]
    np.testing.assert_allclose(losses(split), losses(alone), rtol=bound)
    np.testing.assert_allclose(evaluated(split), evaluated(alone), rtol=bound)
    np.testing.assert_allclose(norms(split), norms(alone), rtol=1e2 * ROUNDING["float32"])
    if "--pipeline_parallel_degree" in method and "--explain_parallel" in method:
        assert re.search(r"stage 0 \(process 0\)\n +llama.embed_tokens", printed)
        assert re.search(r"forward +send +of 2 +2 x 2x32x64 float32, 32,768 bytes sent", printed)
    elif "--explain_parallel" in method:
        assert re.search(
            r"lm_head.weight +1 x \[64, 512\] float32, whole on every process; 131,072 of", printed
        )
        assert "communication of a step in dygraph:" in printed
        assert re.search(r"reduce_scatter of 2 .* bytes sent", printed)
        assert re.search(r"all_gather +of 2 .* bytes sent", printed)
    before = losses(split)
    shutil.rmtree(split / f"checkpoint-{STEPS}")
    train(split, *SPLIT, *method, "--resume_from_checkpoint")
    assert losses(split) == before
    shutil.rmtree(split / f"checkpoint-{STEPS}")  # and in one process, from the checkpoint of two
    train(split, "--per_device_train_batch_size", 4, "--resume_from_checkpoint", *same)
    np.testing.assert_allclose(losses(split), losses(alone), rtol=bound)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ("--tensor_parallel_degree", 2, "--per_device_train_batch_size", 4),
        ("--to_static", "--sharding", "stage1", "--per_device_train_batch_size", 2),
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_bfloat16(train, tmp_path, method):
    """At most twice as far from one process as its run without fused operators; it resumes bit for bit."""
    one = ("--bf16", "true", "--per_device_train_batch_size", 4)
    alone, _ = train(tmp_path / "alone", *one)
    unfused, _ = train(tmp_path / "unfused", *one, *UNFUSED)
    split, _ = train(tmp_path / "split", *SPLIT, *method, "--bf16", "true")
    apart = np.abs(np.subtract(losses(unfused), losses(alone))).max()
    bound = 2 * apart + ROUNDING["bfloat16"]  # and the rounding of a logit, where the two agree by chance
    np.testing.assert_allclose(losses(split), losses(alone), rtol=0, atol=bound)
    before = losses(split)
    shutil.rmtree(split / f"checkpoint-{STEPS}")
    train(split, *SPLIT, *method, "--bf16", "true", "--resume_from_checkpoint")
    assert losses(split) == before
    shutil.rmtree(split / f"checkpoint-{STEPS}")  # and in one process, from the checkpoint of two
    train(split, *one, "--resume_from_checkpoint")
    np.testing.assert_allclose(losses(split), losses(alone), rtol=0, atol=bound)
