"""Runs of the script go on from each other's checkpoints: bit for bit on the same mesh, else to rounding."""

import json
import shutil
from pathlib import Path

import paddle
import pytest
import ranks
import run_inputs
from roundings import ADAM_EPSILON
from run_inputs import losses

from llm_npu.commands import train
from llm_npu.core import program
from llm_npu.training import checkpoint

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("resumed_runs.py")
SOURCES = ("bisect.py", "copy.py", "heapq.py")
STEPS, SAVED = 6, 3
WHOLE_BATCH = "--per_device_train_batch_size 4"
HALVES = "--per_device_train_batch_size 2"
FP32 = "--bf16 false"
TENSOR = f"--tensor_parallel_degree 2 {WHOLE_BATCH}"
ULYSSES = f"--sep_parallel_degree 2 {WHOLE_BATCH} {FP32}"
PIPELINE = f"--pipeline_parallel_degree 2 {HALVES} --gradient_accumulation_steps 2 {FP32}"
DEEP = "--num_hidden_layers 4"  # a part of a pipeline in V shape has a layer or more
V = "--pipeline_parallel_degree 2 --pipeline_schedule dualpipev --per_device_train_batch_size 1"
DUALPIPEV, DEEP_PIPELINE = f"{V} --gradient_accumulation_steps 4 {FP32} {DEEP}", f"{PIPELINE} {DEEP}"
# what goes on from the checkpoint of tensor parallelism in fp32
METHODS = {
    "data parallel": f"{HALVES} {FP32} --async_save",
    "sharding stage 1": f"--sharding stage1 {HALVES} {FP32}",
    "sharding stage 2": f"--sharding stage2 {HALVES} {FP32}",
    "pipeline": PIPELINE,
    "Ulysses": ULYSSES,
    "ring": f"--context_parallel_degree 2 {WHOLE_BATCH} {FP32}",
    "sequence parallel": f"{TENSOR} --sequence_parallel true {FP32} --fuse_attention_qkv false",
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of a very small Llama on a little text."""
    folder = tmp_path_factory.mktemp("inputs")
    fields = {
        **run_inputs.inputs(folder, SOURCES, num_attention_heads=4),
        "split": "80,20,0",
        "max_seq_length": 32,
        "max_steps": STEPS,
        "adam_epsilon": ADAM_EPSILON,
        "save_steps": SAVED,
        "save_total_limit": 9,
        "do_eval": "false",
        "evaluation_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": "true",
    }
    return run_inputs.words(fields)


def alone(arguments, *flags) -> None:
    """A run of one process: this one."""
    with paddle.utils.unique_name.guard():  # parameters named as in a process of its own
        assert program.run(train.main, [*arguments, *map(str, flags)]) == 0


@pytest.fixture(scope="module")
def folder(arguments, tmp_path_factory):
    """Where the runs of two ranks are, after one of one process."""
    folder = tmp_path_factory.mktemp("runs")
    alone(arguments, *f"{WHOLE_BATCH} {FP32}".split(), "--output_dir", folder / "one")
    bf16, fp32 = folder / "tensor bf16", folder / "tensor fp32"
    runs = [
        [bf16, None, TENSOR],
        [folder / "again bf16", bf16, TENSOR],
        [fp32, None, f"{TENSOR} {FP32}"],
        [folder / "whole Ulysses", None, ULYSSES],
        [folder / "again Ulysses", folder / "whole Ulysses", ULYSSES],
        [folder / "whole DualPipeV", None, DUALPIPEV],
        [folder / "again DualPipeV", folder / "whole DualPipeV", DUALPIPEV],
        [folder / "1F1B from DualPipeV", folder / "whole DualPipeV", DEEP_PIPELINE],
        [folder / "whole 1F1B", None, DEEP_PIPELINE],
        [folder / "DualPipeV from 1F1B", folder / "whole 1F1B", DUALPIPEV],
        [folder / "from one", folder / "one", f"{TENSOR} {FP32}"],
        *([folder / name, fp32, flags] for name, flags in METHODS.items()),
    ]
    data = [run for run in runs if run[0].name == "data parallel"]
    runs = [run for run in runs if run not in data]
    for number, some in enumerate((runs, data)):  # plain data parallelism has no groups: a process of its own
        steps = [
            [str(out), start and str(checkpoint.path_of(start, SAVED)), flags] for out, start, flags in some
        ]
        ranks.run(PROGRAM, 2, folder / f"program-{number}", json.dumps(steps), *arguments)
    return folder


def after(output_dir: Path) -> list[float]:
    """The losses of the steps after the checkpoint."""
    resumed, _ = losses(output_dir)
    assert list(resumed)[-(STEPS - SAVED) :] == list(range(SAVED + 1, STEPS + 1)), resumed
    return [resumed[step] for step in range(SAVED + 1, STEPS + 1)]


@pytest.mark.parametrize(
    ("whole", "again"),
    [
        ("tensor bf16", "again bf16"),
        ("whole Ulysses", "again Ulysses"),
        ("whole DualPipeV", "again DualPipeV"),
    ],
)
def test_the_same_mesh_goes_on_bit_for_bit(folder, whole, again):
    whole, again = folder / whole, folder / again
    assert after(again) == after(whole)
    for file in ("model.safetensors", "optimizer.safetensors"):
        first, other = (checkpoint.path_of(out, STEPS) / file for out in (whole, again))
        assert first.read_bytes() == other.read_bytes(), file


@pytest.mark.parametrize("method", METHODS)
def test_another_mesh_goes_on_to_rounding(folder, method):
    # 16 roundings of float32, 2^-24: the weights of two such runs do not part (tests/shared/roundings.py)
    assert after(folder / method) == pytest.approx(after(folder / "tensor fp32"), rel=1e-6)


def test_from_one_process_to_many(folder):
    assert after(folder / "from one") == pytest.approx(after(folder / "one"), rel=1e-6)


@pytest.mark.parametrize(("schedule", "other"), [("DualPipeV", "1F1B"), ("1F1B", "DualPipeV")])
def test_from_one_schedule_to_another(folder, schedule, other):
    whole = after(folder / f"whole {schedule}")
    assert after(folder / f"{other} from {schedule}") == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(("many", "layers"), [("tensor fp32", ""), ("whole DualPipeV", DEEP)])
def test_from_many_processes_back_to_one(folder, arguments, many, layers):
    back = folder / f"back from {many}"
    shutil.copytree(checkpoint.path_of(folder / many, SAVED), checkpoint.path_of(back, SAVED))
    flags = f"{WHOLE_BATCH} {FP32} {layers} --resume_from_checkpoint --output_dir"
    alone(arguments, *flags.split(), back)
    assert after(back) == pytest.approx(after(folder / many), rel=1e-6)


def rates(output_dir: Path) -> list[float]:
    """The learning rates of the steps after the checkpoint."""
    lines = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    by_step = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    return [by_step[step] for step in range(SAVED + 1, STEPS + 1)]


def test_a_new_schedule_counts_from_the_first_step(folder, arguments):
    out = folder / "half the rate"
    shutil.copytree(checkpoint.path_of(folder / "one", SAVED), checkpoint.path_of(out, SAVED))
    flags = f"{WHOLE_BATCH} {FP32} --learning_rate 1e-3 --resume_from_checkpoint --output_dir"
    alone(arguments, *flags.split(), out)
    assert rates(out) == pytest.approx([rate / 2 for rate in rates(folder / "one")])


@pytest.mark.parametrize("setting", ["--weight_decay 0.9", "--adam_beta1 0.5", "--max_grad_norm 0.01"])
def test_a_new_setting_of_the_optimizer_counts(folder, arguments, setting, capsys):
    out = folder / setting
    shutil.copytree(checkpoint.path_of(folder / "one", SAVED), checkpoint.path_of(out, SAVED))
    alone(arguments, *f"{WHOLE_BATCH} {FP32} {setting} --resume_from_checkpoint --output_dir".split(), out)
    assert f"{setting.replace(' ', ' is ')}; the previous run had " in capsys.readouterr().out
    (first, *others), (whole_first, *whole_others) = after(out), after(folder / "one")
    assert first == whole_first  # made by the weights of the checkpoint
    assert all(other != whole for other, whole in zip(others, whole_others, strict=True))


def test_another_number_of_samples_per_step_is_refused(folder, arguments, capsys):
    out = folder / "refused"
    shutil.copytree(checkpoint.path_of(folder / "tensor fp32", SAVED), checkpoint.path_of(out, SAVED))
    flags = f"{HALVES} {FP32} --resume_from_checkpoint --output_dir"
    with paddle.utils.unique_name.guard():
        assert program.run(train.main, [*arguments, *flags.split(), str(out)]) == 2
    assert "samples per step 4, but this run has 2" in capsys.readouterr().err
