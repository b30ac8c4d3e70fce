"""scripts/run_llama_npu.py as a user runs it: training, stopping, resuming, bad input."""

import functools
import json
import math
import shutil
import signal

import paddle
import pytest
import run_inputs
from checkpoint_files import store
from places import ROOT
from run_inputs import losses

from llm_npu.commands import train
from llm_npu.core import console, program
from llm_npu.models.families import FAMILIES
from llm_npu.models.library import names
from llm_npu.training import checkpoint, metrics

pytestmark = pytest.mark.sampled

SCRIPT = ROOT / "scripts/run_llama_npu.py"
DEMO = SCRIPT.parents[1] / "demo.yaml"
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_key_value_heads": 1}
MODEL = {**run_inputs.LLAMA, **SIZES}
VOCABULARY = MODEL["vocab_size"]
STEPS = 12

# Runs the script ARGV[3:], and sends it the signal ARGV[1] at the line that begins with ARGV[2].
SIGNAL_AT = """
import os, runpy, signal, sys
from llm_npu.core import console, program, errors
_, name, line, *sys.argv = sys.argv
say = console.say
def signalled(text=""):
    say(text)
    if text.startswith(line):
        for _ in range(3 if name == "SIGTERM" else 1):  # as Paddle's launcher sends it
            os.kill(os.getpid(), signal.Signals[name])
console.say = signalled
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The arguments of a run of 12 steps of a very small Llama on a little text."""
    sources = ("bisect.py", "copy.py", "heapq.py", "random.py")
    arguments = {
        **run_inputs.inputs(tmp_path_factory.mktemp("inputs"), sources, **SIZES),
        "split": "50,50,0",
        "max_seq_length": 32,
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "save_steps": 5,
        "eval_steps": 6,
        "max_evaluate_steps": 2,
        "learning_rate": "5e-3",
    }
    return run_inputs.words(arguments)


@pytest.fixture(scope="module")
def finished(run_python, inputs, tmp_path_factory):
    """A function that runs the script to its end with more arguments, once: the process and its folder."""

    @functools.cache
    def run(*more: str):
        folder = tmp_path_factory.mktemp("finished") / "out"
        done = run_python(SCRIPT, *inputs, *more, "--output_dir", folder)
        assert done.returncode == 0, done.stderr
        return done, folder

    return run


def test_it_trains_and_writes_everything(finished):
    done, out = finished("--bf16")
    assert done.stderr.startswith("VIRTUAL NPU: ") and done.stderr.count("\n") == 1  # a calm screen
    lines = done.stdout.splitlines()
    for start in ("device   npu (virtual)", "step 12/12: loss ", "eval ", "speed ", "memory ", "before "):
        assert any(line.startswith(start) for line in lines), start
    assert "fused    attention 2 of 2, rms_norm 5 of 5, rotary 2 of 2, swiglu 2 of 2" in lines
    for operator in ("flash_attention", "rms_norm", "rotary_mul", "swiglu", "fused_adamw"):
        assert any(line.startswith(f"ran      {operator} bfloat16: ") for line in lines), operator
    assert any(line.startswith("backend  first step as predicted") for line in lines)
    assert "virtual NPU" in lines[-2]
    assert lines[-1].startswith("On a card, ") and "kernel launch" in lines[-1]

    assert sorted(file.name for file in out.iterdir()) == [
        "checkpoint-10",
        "checkpoint-12",  # two are kept
        "loss.png",
        "metrics.jsonl",
        "metrics.png",
        "run.lock",
    ]
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert checkpoint.verify(out / "checkpoint-12") == STEPS
    train, evaluation = losses(out)
    assert list(train) == list(range(1, STEPS + 1)) and list(evaluation) == [6, STEPS]
    assert abs(train[1] - math.log(VOCABULARY)) < 0.3
    assert train[STEPS] < train[1] - 0.3 and evaluation[STEPS] < math.log(VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [["--bf16"], ["--fp16", "--scale_loss", "1024"]], ids=["bf16", "fp16"])
def test_a_stopped_run_continues_bit_for_bit(run_python, inputs, finished, tmp_path, precision):
    _, whole = finished(*precision)
    stopped = tmp_path / "stopped"
    arguments = [SCRIPT, *inputs, *precision, "--output_dir", stopped]
    run_python("-c", SIGNAL_AT, "SIGKILL", "step 6/", *arguments)
    assert checkpoint.to_resume(True, stopped).name == "checkpoint-5"

    arguments += ["--resume_from_checkpoint", "--async_save"]
    first = run_python("-c", SIGNAL_AT, "SIGTERM", "step 7/", *arguments)
    assert first.returncode == 143, first.stderr
    last = metrics.read(stopped / metrics.FILE)[-1]["step"]
    assert last == 8  # the signal came at the end of step 7, after its checkpoint was decided upon
    assert f"stopped by SIGTERM after step {last}" in first.stdout
    assert checkpoint.to_resume(True, stopped).name == f"checkpoint-{last}"

    again = run_python(*arguments)
    assert again.returncode == 0, again.stderr
    assert f"step {last}/{STEPS}" not in again.stdout and f"step {last + 1}/{STEPS}" in again.stdout
    assert losses(stopped) == losses(whole)
    written = [record for record in metrics.read(stopped / metrics.FILE) if "checkpoint_s" in record]
    assert [record["step"] for record in written] == [5, last, 10, STEPS]
    assert all(0 < record["stall_s"] <= record["checkpoint_s"] for record in written)
    weights = f"checkpoint-{STEPS}/model.safetensors"
    assert (stopped / weights).read_bytes() == (whole / weights).read_bytes()


@pytest.mark.slow
def test_a_run_whose_time_is_over_continues_bit_for_bit(run_python, inputs, finished, tmp_path):
    _, whole = finished("--bf16")
    out = tmp_path / "out"
    arguments = [SCRIPT, *inputs, "--bf16", "--output_dir", out, "--resume_from_checkpoint", "auto"]
    for minutes, step in ((0, 1), (0, 2), (60, STEPS)):
        done = run_python(*arguments, "--exit_duration_in_mins", minutes)
        assert done.returncode == 0, done.stderr
        sentence = f"stopped by --exit_duration_in_mins 0 after step {step} of {STEPS}"
        assert (sentence in done.stdout) == (step < STEPS)
        assert checkpoint.to_resume(True, out).name == f"checkpoint-{step}"
    assert losses(out) == losses(whole)


@pytest.mark.slow
def test_all_ranks_end_when_the_time_of_the_first_is_over(run_python, inputs, tmp_path):
    out = tmp_path / "out"
    arguments = [*inputs, "--nproc", "2", "--exit_duration_in_mins", "0", "--output_dir", out]
    done = run_python(SCRIPT, *arguments)
    assert done.returncode == 0, done.stderr
    assert all(key in done.stdout for key in (f"step 1 of {STEPS}", "--resume_from_checkpoint"))
    assert checkpoint.verify(out / "checkpoint-1") == 1


@pytest.mark.slow
def test_ctrl_c_saves_too(run_python, inputs, tmp_path):
    out = tmp_path / "out"
    done = run_python("-c", SIGNAL_AT, "SIGINT", "step 2/", SCRIPT, *inputs, "--output_dir", out)
    assert done.returncode == 130, done.stderr
    assert "stopped by SIGINT" in done.stdout and len(checkpoint.complete(out)) >= 1


@pytest.mark.slow
def test_it_trains_on_the_cpu(run_python, inputs, tmp_path):
    out = tmp_path / "out"
    arguments = [SCRIPT, *inputs, "--output_dir", out, "--device", "cpu", "--max_steps", "3"]
    done = run_python(*arguments, "--use_flash_attention", "true", "--disable_fused_options")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "device   cpu (cpu)" in done.stdout and "VIRTUAL" not in done.stdout.upper()
    assert "note     --use_flash_attention is read as --use_npu_fusion_attention" in done.stdout
    assert "note     --use_npu_fusion_attention has no effect" in done.stdout
    assert "fused    none" in done.stdout
    # PaddleFormers' own norm calls a kernel that Paddle has for CUDA only; rms_norm stands in for it.
    assert ("ran      rms_norm" in done.stdout) == (names.TITLE == "PaddleFormers")
    train, _ = losses(out)
    assert abs(train[1] - math.log(VOCABULARY)) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("data ", marks=pytest.mark.slow),
        "step 2: evaluation",
        pytest.param("prompt ", marks=pytest.mark.slow),
    ],
)
def test_sigterm_outside_the_steps(run_python, inputs, tmp_path, line):
    arguments = [*inputs, "--output_dir", tmp_path / "out", "--max_steps", "4", "--eval_steps", "2"]
    done = run_python("-c", SIGNAL_AT, "SIGTERM", line, SCRIPT, *arguments)
    assert done.returncode == 143
    assert done.stderr.count("\n") == 1  # the banner, and no stack of Paddle's
    checkpoints = [folder.name for folder in checkpoint.complete(tmp_path / "out")]
    assert (
        checkpoints
        == {"data ": [], "step 2: evaluation": ["checkpoint-3"], "prompt ": ["checkpoint-4"]}[line]
    )


@pytest.fixture
def run_here(capsys):
    """Runs the script's main in this process, which has the virtual NPU: (exit code, what is on stderr)."""

    def run(*argv):
        with paddle.utils.unique_name.guard():  # parameters named as in a process of its own
            status = program.run(train.main, [str(word) for word in argv])
        return status, capsys.readouterr().err

    return run


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_demo_trains_every_family(run_here, inputs, tmp_path, family):
    by_flag = dict(zip(inputs[::2], inputs[1::2], strict=True))
    text = ["--input_dir", by_flag["--input_dir"], "--data_cache", by_flag["--data_cache"]]
    small = ["--num_hidden_layers", "2", "--cutoff_len", "32", "--max_steps", "4"]
    arguments = ["--config", DEMO, "--model_type", family, *text, *small, "--output_dir", tmp_path]
    status, output = run_here(*arguments)
    assert status == 0, output
    train, _ = losses(tmp_path)
    assert list(train) == [1, 2, 3, 4] and abs(train[1] - math.log(8192)) < 0.5
    written = json.loads((tmp_path / "checkpoint-4/config.json").read_text())
    assert written["model_type"] == family
    status, output = run_here(*arguments, "--max_steps", "5", "--resume_from_checkpoint")
    assert status == 0, output
    assert list(losses(tmp_path)[0]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "npu:card"], "npu:card requires an Ascend card"),
        (["--device", "gpu"], "gpu"),
        (["--device", "npu:99"], "npu:99 does not exist"),
        (["--max_step", "3"], "did you mean --max_steps?"),
        (["--input_dir", "/nowhere"], "/nowhere"),
        (["--max_seq_length", "65"], "64 positions"),
        (["--model_name_or_path", "llama-tini"], "llama-tiny"),
        (["--resume_from_checkpoint"], "no complete checkpoint"),
        (["--resume_from_checkpoint", "/nowhere"], "/nowhere is not a folder"),
        (["--output_dir", "/dev/null/out"], "/dev/null is a file"),
    ],
    ids=lambda value: value[0].lstrip("-") if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(run_here, inputs, tmp_path, arguments, sentence):
    out = tmp_path / "out"
    status, output = run_here(*inputs, "--output_dir", out, *arguments)
    assert status == 2
    assert output.startswith("error: ") and sentence in output and output.count("\n") == 1
    assert not out.exists()


def test_a_corrupt_checkpoint_is_refused(run_here, inputs, tmp_path):
    store(tmp_path, 5, {"model.safetensors": bytes(100)})
    (tmp_path / "checkpoint-5/model.safetensors").write_bytes(bytes(99))
    status, output = run_here(*inputs, "--output_dir", tmp_path, "--resume_from_checkpoint")
    assert status == 2
    assert "model.safetensors has 99 bytes instead of 100" in output
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint-5"]


def test_an_earlier_run_is_not_overwritten(run_here, inputs, tmp_path):
    store(tmp_path, 5, {"model.safetensors": bytes(100)})
    status, output = run_here(*inputs, "--output_dir", tmp_path)
    assert status == 2 and "--overwrite_output_dir to replace it" in output
    assert checkpoint.verify(tmp_path / "checkpoint-5") == 5


@pytest.mark.slow
def test_a_run_from_an_older_checkpoint_leaves_the_later_ones_behind(run_here, inputs, tmp_path):
    arguments = [*inputs, "--output_dir", tmp_path, "--save_steps", "2", "--save_total_limit", "2"]
    assert run_here(*arguments, "--max_steps", "6")[0] == 0
    assert [folder.name for folder in checkpoint.complete(tmp_path)] == ["checkpoint-4", "checkpoint-6"]
    from_4 = ["--resume_from_checkpoint", tmp_path / "checkpoint-4"]
    status, output = run_here(*arguments, "--max_steps", "5", *from_4, "--seed", "7")
    assert status == 2 and "seed 42, but this run has 7" in output
    assert len(checkpoint.complete(tmp_path)) == 2  # nothing is removed before the training starts
    assert run_here(*arguments, "--max_steps", "5", *from_4)[0] == 0
    assert [folder.name for folder in checkpoint.complete(tmp_path)] == ["checkpoint-4", "checkpoint-5"]
    assert list(losses(tmp_path)[0]) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_the_text_before_a_resumed_run_is_the_checkpoints(run_here, inputs, tmp_path, monkeypatch):
    from llm_npu.inference import generate

    seen = []
    monkeypatch.setattr(
        generate,
        "continuation",
        lambda network, *_: seen.append(network.lm_head.weight.astype("float32").numpy()) or "",
    )
    arguments = [*inputs, "--output_dir", tmp_path, "--max_steps"]
    assert run_here(*arguments, "2")[0] == 0
    assert run_here(*arguments, "3", "--resume_from_checkpoint")[0] == 0
    untrained, trained, before, _ = seen
    assert (before == trained).all() and (before != untrained).any()


@pytest.mark.slow
def test_a_skipped_last_step_has_a_checkpoint(run_here, inputs, tmp_path):
    arguments = [*inputs, "--output_dir", tmp_path, "--max_steps", "3", "--skip_data_intervals", "2", "3"]
    assert run_here(*arguments)[0] == 0
    assert checkpoint.to_resume(True, tmp_path).name == "checkpoint-3"
    assert list(losses(tmp_path)[0]) == [1]


def test_a_fault_in_training_keeps_its_traceback_and_gives_the_terminal_back(
    run_here, inputs, tmp_path, monkeypatch
):
    from llm_npu.training.trainer import PretrainTrainer

    stops = []
    monkeypatch.setattr(console.Display, "stop", lambda display: stops.append(display))
    monkeypatch.setattr(
        PretrainTrainer,
        "training_step",
        lambda *_, **__: paddle.matmul(paddle.ones([2, 3]), paddle.ones([2])),
    )
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="failed after step 0") as error:
        run_here(*inputs, "--output_dir", tmp_path)
    assert isinstance(error.value.__cause__, ValueError)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(stops) == 1


@pytest.mark.slow
def test_the_launches_that_are_reported_are_the_trainings(run_here, inputs, tmp_path, monkeypatch):
    from llm_npu.console.results import Results
    from llm_npu.inference import generate

    reported = []
    report = Results.report
    monkeypatch.setattr(
        Results,
        "report",
        lambda self, run: (reported.append(sum(r.calls for r in run.launches)), report(self, run)),
    )
    arguments = [*inputs, "--max_steps", "2", "--output_dir"]
    assert run_here(*arguments, tmp_path / "with")[0] == 0
    monkeypatch.setattr(generate, "continuation", lambda *_: "")
    assert run_here(*arguments, tmp_path / "without")[0] == 0
    assert reported[0] == reported[1] > 0


def test_a_plugin_that_is_not_built_is_one_sentence(run_python, tmp_path):
    for package in ("llm_npu", "paddle_fused"):
        without = shutil.ignore_patterns("*.so", "csrc")
        shutil.copytree(SCRIPT.parents[1] / package, tmp_path / package, ignore=without)
    done = run_python(SCRIPT, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "output").exists()


@pytest.mark.slow
def test_out_of_memory_is_one_sentence(run_python, inputs, tmp_path):
    out = tmp_path / "out"
    flags = ["--per_device_train_batch_size", "128", "--output_dir", out]
    done = run_python(SCRIPT, *inputs, *flags, VIRTUAL_NPU_MEMORY_GB="0.012")
    assert done.returncode == 2
    assert "error: Out of memory" in done.stderr and "Lower --per_device_train_batch_size 128 " in done.stderr
    assert checkpoint.complete(out) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--num_hidden_layers", "1"], "num_hidden_layers 2, but this run has 1"),
        (["--fp16"], "torch_dtype bfloat16, but this run has float16"),
    ],
    ids=["layers", "precision"],
)
def test_a_checkpoint_of_another_model_is_refused(run_here, inputs, tmp_path, arguments, sentence):
    written = {**MODEL, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    store(tmp_path, 5, {"config.json": json.dumps(written)})
    status, output = run_here(*inputs, "--output_dir", tmp_path, "--resume_from_checkpoint", *arguments)
    assert status == 2 and sentence in output


@pytest.mark.slow
@pytest.mark.paddlenlp  # PaddleFormers' weights into the residual are not scaled by the depth: slower
def test_without_arguments_the_loss_falls_below_60_percent_of_guessing(run_python, tmp_path):
    done = run_python(SCRIPT, cwd=tmp_path, timeout=1500)
    assert done.returncode == 0, done.stderr
    train, evaluation = losses(tmp_path / "output")
    vocabulary = 8192
    assert len(train) == 200 and abs(train[1] - math.log(vocabulary)) < 0.3
    last = sum(train[step] for step in range(191, 201)) / 10
    assert last < 0.6 * math.log(vocabulary) and evaluation[200] < 0.6 * math.log(vocabulary)
    assert (tmp_path / "output/loss.png").stat().st_size > 10_000
