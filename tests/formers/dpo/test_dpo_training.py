"""scripts/run_llama_npu.py --stage dpo: training, its cached reference, resuming, ranks, what is refused."""

import functools
import json
import math
import shlex
import shutil

import docstrings
import document_commands
import numpy as np
import pytest
import run_inputs
from places import ROOT

from llm_npu import config
from llm_npu.models.families import FAMILIES
from llm_npu.training import metrics
from llm_npu.training.dpo import DPOTrainer
from llm_npu.training.model import config_for

SCRIPT = ROOT / "scripts/run_llama_npu.py"
PAGE = ROOT / "docs/formers.md"
HERE = ROOT / "tests/formers"
STEPS = 4
RUN = {
    "stage": "dpo",
    "split": "80,20,0",
    "max_seq_length": 256,
    "max_steps": STEPS,
    "per_device_train_batch_size": 2,
    "logging_steps": 1,
    "save_steps": 2,
    "eval_steps": STEPS,
    "max_evaluate_steps": 2,
    "learning_rate": "1e-4",
}
FLOAT32 = ("--no_bf16",)
PAIRS = 32


@pytest.fixture(scope="module")
def model(run_python, tmp_path_factory):
    """A function: the folder of a tiny model of a family, with a tokenizer."""

    @functools.cache
    def build_model(family: str):
        folder = tmp_path_factory.mktemp("models") / family
        done = run_python(HERE / "make_tiny_model.py", folder, family)
        assert done.returncode == 0, done.stderr
        return folder

    return build_model


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Docstrings of the standard library; the answer to reject is the text backwards."""
    folder = tmp_path_factory.mktemp("pairs")
    docstrings.write(folder)
    lines = (folder / "dpo-train.jsonl").read_text().splitlines(keepends=True)
    file = folder / "pairs.jsonl"
    file.write_text("".join(lines[:PAIRS]))
    return file


@pytest.fixture(scope="module")
def started(run_python, model, pairs, tmp_path_factory):
    """A function that runs a family with more arguments: the process and its folder."""

    def run(*more, family="llama", cache=None, **options):
        out = tmp_path_factory.mktemp("run")
        cache = out / "cache" if cache is None else cache
        where = {"model_name_or_path": model(family), "input_dir": pairs, "data_cache": cache}
        arguments = run_inputs.words({**RUN, **where, "output_dir": out / "out", **options})
        return run_python(SCRIPT, *arguments, *more), out / "out"

    return run


@pytest.fixture(scope="module")
def finished(started):
    """As ``started``, to its end, once: the lines of the terminal and the folder."""

    @functools.cache
    def run(*more, family="llama", **options):
        done, out = started(*more, family=family, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines(), out

    return run


def records(out, name="loss"):
    return [record for record in metrics.read(out / metrics.FILE) if name in record]


def column(out, name):
    return [record[name] for record in records(out)]


def test_a_run_learns_to_prefer(finished):
    lines, out = finished()
    assert any(line.startswith(f"reference {PAIRS} pairs: log-probabilities computed in") for line in lines)
    assert "backend  first step as predicted" in "\n".join(lines)
    assert any(
        line.startswith("ran      flash_attention bfloat16: ascend flash_attention_npu") for line in lines
    )
    steps = records(out)
    assert steps[0]["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert all(steps[0][name] == pytest.approx(0, abs=1e-6) for name in DPOTrainer.FIGURES[:2])
    for step in steps:
        assert set(DPOTrainer.FIGURES) <= step.keys()
        assert step["rewards/margins"] == pytest.approx(step["rewards/chosen"] - step["rewards/rejected"])
        assert 0 <= step["rewards/accuracies"] <= 1
    assert steps[-1]["rewards/margins"] > 0.05 and steps[-1]["loss"] < math.log(2)
    (held_out,) = records(out, "eval_loss")
    assert held_out["eval_loss"] < math.log(2) and held_out["eval_rewards/margins"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_as_without_fused_operators(finished, family):
    _, fused = finished(*FLOAT32, family=family)
    lines, upstream = finished(*FLOAT32, "--disable_fused_options", family=family)
    assert any(line.startswith("fused    none") for line in lines)
    for name in ("loss", "grad_norm", "logps/chosen", "logps/rejected"):
        assert column(fused, name) == pytest.approx(column(upstream, name), rel=2e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "lost"])
@pytest.mark.parametrize("lora", [(), ("--finetuning_type", "lora")], ids=["full", "lora"])
def test_a_continued_run_is_the_same_bit_for_bit(started, finished, tmp_path, lora, cached):
    """With the reference from the cache, and where it is lost: computed again from the initial weights."""
    whole = finished(*lora)[1] if cached else finished(*lora, data_cache=tmp_path / "cache")[1]
    if not cached:
        shutil.rmtree(tmp_path / "cache")
    cache = whole.parent / "cache" if cached else tmp_path / "cache"
    done, out = started(*lora, "--resume_from_checkpoint", whole / "checkpoint-2", cache=cache)
    assert done.returncode == 0, done.stderr
    assert f"log-probabilities {'read from' if cached else 'computed in'}" in done.stdout
    for name in ("peft_model" if lora else "model", "optimizer"):
        file = f"checkpoint-{STEPS}/{name}.safetensors"
        assert (out / file).read_bytes() == (whole / file).read_bytes(), name
    for name in ("loss", *DPOTrainer.FIGURES):
        assert column(out, name) == column(whole, name)[2:], name


TWO = ("--nproc", "2", "--per_device_train_batch_size", "1", "--max_evaluate_steps", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ("--gradient_accumulation_steps", "2", "--per_device_train_batch_size", "1"),
        TWO,
        *((*TWO, "--sharding", f"stage{stage}") for stage in (1, 2, 3)),
        ("--padding", "none"),
        ("--recompute",),
    ],
    ids=lambda method: " ".join(method),
)
def test_however_a_step_is_split_it_is_the_same(finished, method):
    _, alone = finished(*FLOAT32)
    _, split = finished(*FLOAT32, *method)
    for name in ("loss", "logps/chosen", "rewards/margins", "rewards/accuracies"):
        assert column(split, name) == pytest.approx(column(alone, name), rel=5e-5, abs=1e-5), name


@pytest.mark.slow
def test_lora_on_two_ranks(finished):
    lora = ("--finetuning_type", "lora", "--learning_rate", "1e-3", *FLOAT32)
    _, alone = finished(*lora)
    _, two = finished(*lora, *TWO)
    assert column(two, "loss") == pytest.approx(column(alone, "loss"), rel=5e-5)
    assert column(two, "loss")[-1] < math.log(2) - 0.01


@pytest.mark.slow
def test_the_cache_is_verified(started, finished):
    _, out = finished()
    (folder,) = (out.parent / "cache").glob("reference-*")
    written, logps = (folder / "reference.json").read_text(), np.load(folder / "0.npy")
    (folder / "reference.json").write_text(json.dumps({**json.loads(written), "weights": "others"}))
    refused = started(cache=out.parent / "cache")[0]
    assert refused.returncode == 2 and "a different model or data" in refused.stderr
    (folder / "reference.json").write_text(written)
    for damaged in (logps[:-1], np.full_like(logps, np.nan)):
        np.save(folder / "0.npy", damaged)
        refused = started(cache=out.parent / "cache")[0]
        assert refused.returncode == 2 and "are damaged (inconsistent sizes)" in refused.stderr
    np.save(folder / "0.npy", logps)
    other = started("--max_seq_length", "192", cache=out.parent / "cache")[0]  # another fingerprint
    assert other.returncode == 0 and "log-probabilities computed in" in other.stdout


@pytest.mark.slow
def test_another_reference_is_refused_on_resume(started, finished, model, tmp_path):
    _, out = finished()
    resumed = ("--resume_from_checkpoint", out / "checkpoint-2")
    other = tmp_path / "model"
    shutil.copytree(model("llama"), other, ignore=shutil.ignore_patterns("*.safetensors*"))
    shutil.copy(out / f"checkpoint-{STEPS}" / "model.safetensors", other)
    refused = started(*resumed, model_name_or_path=other)[0]
    assert refused.returncode == 2 and "reference weights " in refused.stderr
    refused = started(*resumed, "--dpo_loss", "ipo")[0]
    assert refused.returncode == 2 and all(key in refused.stderr for key in ("dpo_loss sigmoid", "ipo"))


@pytest.mark.slow
def test_a_bad_line_is_named(started, pairs, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(pairs.read_text() + json.dumps({"prompt": "x", "rejected": "b"}) + "\n")
    done, _ = started(input_dir=file)
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{file}, line {PAIRS + 1} has prompt, rejected, " in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model_type", "qwen3"), "--stage dpo needs a directory"),
        (("--tensor_parallel_degree", "2", "--nproc", "2"), "--stage dpo cannot split the model"),
        (("--pipeline_parallel_degree", "2", "--nproc", "2"), "--stage dpo cannot split the model"),
        (("--packing", "stream"), "--stage dpo keeps preference pairs whole"),
        (("--dpo_loss", "orpo"), "--dpo_loss is 'orpo', but must be sigmoid, hinge or ipo"),
        (("--dpo_label_smoothing", "0.5"), "--dpo_label_smoothing is 0.5, but must be at least 0"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        config.read(["--stage", "dpo", "--input_dir", "x", *arguments])


def test_it_needs_pairs_and_weights(tmp_path):
    with pytest.raises(ValueError, match=r"--stage dpo .*--input_dir"):
        config.read(["--stage", "DPO"])
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    arguments = ["--stage", "dpo", "--input_dir", "x", "--model_name_or_path", str(tmp_path)]
    with pytest.raises(ValueError, match=r"--stage dpo .*--continue_training false"):
        config.read([*arguments, "--continue_training", "false"])
    values = config.read([*arguments, "--beta", "0.2"]).values
    assert (values.learning_rate, values.packing, values.dpo_beta) == (1e-6, "none", 0.2)


def test_a_sliding_window_below_the_length_is_refused(tmp_path):
    fields = FAMILIES["qwen3"].presets[FAMILIES["qwen3"].tiny]
    more = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({**fields, **more, "model_type": "qwen3"}))
    (tmp_path / "model.safetensors").touch()
    arguments = [
        "--stage",
        "dpo",
        "--input_dir",
        "x",
        "--model_name_or_path",
        str(tmp_path),
        "--max_seq_length",
    ]
    with pytest.raises(ValueError, match=r"64 tokens; .*--max_seq_length 64"):
        config_for(config.parse([*arguments, "128"]))
    config_for(config.parse([*arguments, "64"]))


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["none", "first_fit"])
def test_the_command_of_the_page(run_python, model, pairs, tmp_path, packing):
    """In a folder with what it names, and few steps."""
    texts = [command.text for command in document_commands.commands(PAGE)]
    (words,) = [shlex.split(text.partition("python ")[2]) for text in texts if "--stage dpo" in text]
    shutil.copytree(model("qwen3"), tmp_path / "model")
    shutil.copy(pairs, tmp_path / "pairs.jsonl")
    few = ("--max_steps", "2", "--packing", packing, "--data_cache", tmp_path / "cache")
    done = run_python(ROOT / words[0], *words[1:], *few, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / words[words.index("--output_dir") + 1]
    assert column(out, "loss")[0] == pytest.approx(math.log(2), rel=1e-3)
