"""--enable_auto_parallel of the training script, on two processes, against one."""

import functools
import re
import shutil
from pathlib import Path

import pytest
import run_inputs
from places import ROOT
from roundings import ADAM_EPSILON, assert_trained_alike

from llm_npu.training import metrics

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts/run_llama_npu.py"
STEPS = 4
SPLIT = ("--nproc", 2, "--enable_auto_parallel")
FUSED = ("use_npu_fusion_attention", "use_fused_rms_norm", "use_fused_rope", "use_fused_swiglu")
UNFUSED = ("--disable_fused_options", "true")  # masks and positions, too, then go from stage to stage


@pytest.fixture(scope="module")
def train(run_python, tmp_path_factory):
    """A function that trains with some arguments; returns the output folder and what was printed."""
    folder = tmp_path_factory.mktemp("inputs")
    inputs = run_inputs.inputs(folder)

    def run(out: Path, *arguments) -> tuple[Path, str]:
        fields = {
            **inputs,
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
            "adam_epsilon": ADAM_EPSILON,
        }
        words = run_inputs.words(fields)
        done = run_python(SCRIPT, *words, *arguments, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        return out, done.stdout

    return run


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    """A function that returns the output folders of one process, by name, for a precision."""

    @functools.cache
    def runs(*precision) -> dict[str, Path]:
        whole, halves = (("--per_device_train_batch_size", rows) for rows in (4, 2))
        ways = {
            "fused": whole,
            "unfused": (*whole, *UNFUSED),
            "in micro batches": (*halves, "--gradient_accumulation_steps", 2),
            **{f"without {option}": (*whole, f"--{option}", "false") for option in FUSED},
        }
        return {
            name: train(tmp_path_factory.mktemp("alone") / "out", *flags, *precision)[0]
            for name, flags in ways.items()
        }

    return runs


def check(split: Path, runs: dict[str, Path], name: str) -> None:
    """The rule of tests/shared/roundings.py; ``name``: of the run of one process that ``split`` should be."""
    others = [folder for other, folder in runs.items() if other != name]
    for quantity in (losses, norms, evaluated):
        there, unlike = quantity(runs[name]), [quantity(folder) for folder in others]
        assert_trained_alike(quantity.__name__, quantity(split), there, unlike)


def recorded(folder: Path, name: str) -> list[float]:
    return [record[name] for record in metrics.read(folder / metrics.FILE) if name in record]


def losses(folder: Path) -> list[float]:
    return recorded(folder, "loss")


def norms(folder: Path) -> list[float]:
    return recorded(folder, "grad_norm")


def evaluated(folder: Path) -> list[float]:
    """The losses of evaluation, one in a run."""
    evaluations = recorded(folder, "eval_loss")
    assert len(evaluations) == 1
    return evaluations


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
            *("--to_static", "--use_fused_add_rms_norm", "true"),
            *("--tensor_parallel_degree", 2, "--per_device_train_batch_size", 4),
        ),
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
def test_it_trains_as_one_process_and_resumes(train, alone, tmp_path, method):
    same = UNFUSED if UNFUSED[0] in method else ()
    runs, name = alone("--bf16", "false"), "unfused" if same else "fused"
    split, printed = train(tmp_path / "split", *SPLIT, *method)
    check(split, runs, name)
    assert ("ran      add_rms_norm float32: ascend" in printed) is ("--use_fused_add_rms_norm" in method)
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
    check(split, runs, name)


@pytest.mark.parametrize(
    "method",
    [
        ("--tensor_parallel_degree", 2, "--per_device_train_batch_size", 4),
        ("--to_static", "--sharding", "stage1", "--per_device_train_batch_size", 2),
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_bfloat16(train, alone, tmp_path, method):
    """As in float32; it resumes bit for bit."""
    runs = alone("--bf16", "true")
    split, _ = train(tmp_path / "split", *SPLIT, *method, "--bf16", "true")
    check(split, runs, "fused")
    before = losses(split)
    shutil.rmtree(split / f"checkpoint-{STEPS}")
    train(split, *SPLIT, *method, "--bf16", "true", "--resume_from_checkpoint")
    assert losses(split) == before
    shutil.rmtree(split / f"checkpoint-{STEPS}")  # and in one process, from the checkpoint of two
    train(split, "--bf16", "true", "--per_device_train_batch_size", 4, "--resume_from_checkpoint")
    check(split, runs, "fused")
