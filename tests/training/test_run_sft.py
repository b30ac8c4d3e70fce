"""scripts/run_llama_npu.py on conversations, packed text and LoRA: what a user gets, and what is repeated."""

import json
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
import run_inputs
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM
from roundings import ADAM_EPSILON, assert_trained_alike
from run_inputs import OTHERS, losses
from safetensors.numpy import load_file
from test_run_llama import MODEL, VOCABULARY

from llm_npu.commands import train
from llm_npu.core import program
from llm_npu.data.text import chat_template
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer
from llm_npu.models import lora, weights
from llm_npu.training import checkpoint
from llm_npu.training.checkpoint.training import MERGED
from paddle_fused.parity import ROUNDING

pytestmark = pytest.mark.slow

STEPS = 4
CONSTANT = ("--lr_scheduler_type", "constant")
LORA, PACKED = ("--finetuning_type", "lora"), ("--packing", "first_fit")
PRECISIONS = {
    "float32": ("--no_bf16",),
    "bfloat16": ("--bf16",),
    "float16": ("--fp16", "--scale_loss", "262144"),  # which the first steps are too large for
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a very small Llama of random weights, and a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    text, model = folder / "text", folder / "model"
    text.mkdir()
    library = Path(json.__file__).parents[1]
    for name in ("bisect.py", "copy.py"):
        shutil.copy(library / name, text)
    shutil.copytree(trained_tokenizer(corpus(text), VOCABULARY, str(folder)), model)
    paddle.seed(0)
    weights.save(LlamaForCausalLM(LlamaConfig(**MODEL, tie_word_embeddings=False)), model)
    return model


@pytest.fixture(scope="module")
def inputs(model, tmp_path_factory):
    """The arguments of a fine-tuning of 4 steps on a few sums."""
    data = tmp_path_factory.mktemp("data")
    sums = [{"src": f"{a} + {b}?", "tgt": f"It is {a + b}" + "!" * a} for a in range(9) for b in (1, 2, 3)]
    (data / "sums.jsonl").write_text("".join(json.dumps(sum_of_two) + "\n" for sum_of_two in sums))
    arguments = {
        "model_name_or_path": model,
        "stage": "sft",
        "input_dir": data,
        "data_cache": data / "cache",
        "split": "75,25,0",
        "max_seq_length": 48,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 2,
        "save_steps": 2,
        "eval_steps": 2,
    }
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


@pytest.fixture
def run(capsys):
    """Runs the script's main in this process, which has the virtual NPU: (exit code, stdout, stderr)."""

    def run(*argv):
        with paddle.utils.unique_name.guard():  # parameters named as in a process of its own
            status = program.run(train.main, [str(word) for word in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def stored(folder):
    """{name: bytes} of everything that a LoRA checkpoint holds of the weights and the optimizer."""
    return {
        name: array.tobytes()
        for file in (lora.FILE, "optimizer.safetensors")
        for name, array in load_file(folder / file).items()
    }


@pytest.mark.parametrize("other", [None, *OTHERS])
def test_fine_tuning_on_conversations(run, inputs, model, tmp_path, other):
    out, arguments = tmp_path / "out", [*inputs]
    if other:  # with random weights
        shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
        (tmp_path / "model/config.json").write_text(json.dumps(run_inputs.LLAMA | OTHERS[other]))
        arguments[1] = str(tmp_path / "model")
    status, output, _ = run(*arguments, "--output_dir", out, "--packing", "true")
    assert status == 0
    train, evaluation = losses(out)
    assert train[STEPS] < train[1] and evaluation[STEPS] < evaluation[2]
    assert "note     20 conversations packed into " in output and "filling" in output
    assert "turns are formatted as User: and Assistant:" in output
    assert "prompt   '<|begin_of_text|>User: 0 + 1?\\nAssistant:'" in output
    tokenizer = load_tokenizer(checkpoint.path_of(out, STEPS))
    assert chat_template.source_of(tokenizer) == chat_template.DEFAULT


@pytest.mark.parametrize("precision", ["--bf16", pytest.param("--no_bf16", marks=pytest.mark.slow)])
def test_a_continued_run_with_lora_is_the_same_bit_for_bit(run, inputs, tmp_path, precision):
    arguments = [*inputs, "--finetuning_type", "lora", "--lora_dropout", "0.1", precision, *CONSTANT]
    arguments += ["--packing", "first_fit", "--gradient_accumulation_steps", "2"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert run(*arguments, "--output_dir", whole)[0] == 0
    assert run(*arguments, "--output_dir", halves, "--max_steps", STEPS // 2)[0] == 0
    assert run(*arguments, "--output_dir", halves, "--resume_from_checkpoint")[0] == 0
    assert losses(halves) == losses(whole)
    first_checkpoint, other = (checkpoint.path_of(out, STEPS) for out in (whole, halves))
    assert stored(first_checkpoint) == stored(other) and len(stored(first_checkpoint)) > 20
    assert {"lora_config.json", "config.json", lora.FILE} <= {
        file.name for file in first_checkpoint.iterdir()
    }
    assert not list(first_checkpoint.glob("model*.safetensors"))  # the base stays where it was
    merged = [(out / MERGED / weights.FILE).read_bytes() for out in (whole, halves)]
    assert merged[0] == merged[1]


def test_the_merged_model_can_be_trained_on(run, inputs, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    status, output, _ = run(*inputs, "--finetuning_type", "lora", "--output_dir", first, *CONSTANT)
    assert status == 0 and str(first / MERGED) in output
    again = [*inputs, "--output_dir", second, *CONSTANT]
    again[1] = str(first / MERGED)
    status, output, _ = run(*again, "--max_steps", "1", "--learning_rate", "0", "--eval_steps", "1")
    assert status == 0 and "no chat template" not in output  # the merged folder has it
    # In bfloat16 the merged weights are rounded, and x A B is not.
    assert losses(second)[1][1] == pytest.approx(losses(first)[1][STEPS], rel=1e-2)


def test_a_run_with_lora_continues_on_its_own_base_only(run, inputs, model, tmp_path):
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(model, base)
    arguments = [*inputs, "--output_dir", out, "--finetuning_type", "lora", "--max_steps", "1"]
    arguments[1] = str(base)
    assert run(*arguments)[0] == 0
    arguments += ["--resume_from_checkpoint"]
    for changed, sentence in (
        (["--lora_rank", "4"], "lora_rank 8, but this run has 4"),
        (["--finetuning_type", "full"], "finetuning_type lora, but this run has full"),
        (["--packing", "length_grouped"], "packing none, but this run has length_grouped"),
    ):
        status, _, output = run(*arguments, *changed)
        assert status == 2 and sentence in output
    other = LlamaForCausalLM(LlamaConfig(**MODEL, tie_word_embeddings=False))
    weights.save(other, base)
    status, _, output = run(*arguments)
    assert status == 2 and "base weights" in output


def test_the_loss_does_not_depend_on_how_a_step_is_cut_into_micro_batches(run, inputs, tmp_path):
    runs_losses = []
    for size, count in ((4, 1), (1, 4)):
        out = tmp_path / f"{size}"
        cut = ["--per_device_train_batch_size", size, "--gradient_accumulation_steps", count]
        cut += ["--adam_epsilon", ADAM_EPSILON]
        assert run(*inputs, "--output_dir", out, "--no_bf16", "--padding", "longest", *cut)[0] == 0
        runs_losses.append(list(losses(out)[0].values()))
    np.testing.assert_allclose(runs_losses[1], runs_losses[0], rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", [(), PACKED, LORA, (*LORA, *PACKED)], ids=" ".join)
def test_the_loss_without_logits_trains_as_with_them(run, inputs, tmp_path, method, precision):
    runs = {
        "without logits": ("--use_fused_linear_cross_entropy", "true"),
        "with logits": ("--use_fused_linear_cross_entropy", "false"),
        "unfused": ("--disable_fused_options", "true"),
    }
    shared = [*inputs, *method, *PRECISIONS[precision], "--adam_epsilon", ADAM_EPSILON]
    runs_losses = []
    for name, more in runs.items():
        status, output, _ = run(*shared, *more, "--output_dir", tmp_path / name)
        assert status == 0
        ran = f"ran      linear_cross_entropy {precision}: ascend" in output
        assert ran is (name == "without logits"), output
        train, evaluation = losses(tmp_path / name)
        runs_losses.append([*train.values(), *evaluation.values()])
    here, there, unfused = runs_losses
    assert_trained_alike("losses", here, there, [unfused], ROUNDING[precision])


@pytest.mark.parametrize("fused", [(), ("--disable_fused_options",)], ids=["fused", "upstream"])
def test_the_held_out_loss_does_not_depend_on_packing(run, inputs, tmp_path, fused):
    evaluations = []
    for packing, padding in (
        ("none", "longest"),
        ("first_fit", "none"),
        ("first_fit", "max_length"),
        ("length_grouped", "longest"),
    ):
        out = tmp_path / f"{packing}-{padding}"
        arguments = [*inputs, "--packing", packing, "--padding", padding, "--no_bf16", *fused]
        arguments += ["--learning_rate", "0", "--max_steps", "1", "--output_dir", out]
        assert run(*arguments)[0] == 0
        evaluations.append(losses(out)[1][1])
    np.testing.assert_allclose(evaluations, evaluations[0], rtol=1e-5)


@pytest.mark.parametrize(
    "samples",
    [["--packing", "first_fit"], ["--packing", "length_grouped", "--padding", "longest"],
     ["--reset_attention_mask"], ["--packing", "false", "--recompute"]],
    ids=lambda words: words[-1],
)  # fmt: skip
def test_text_is_trained_on_document_by_document(run, model, tmp_path, samples):
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "to be, " * (1 + n % 7)}) + "\n" for n in range(60)))
    arguments = ["--model_name_or_path", model, "--input_dir", text, "--data_cache", tmp_path]
    arguments += [
        "--split",
        "8,2,0",
        "--max_seq_length",
        "48",
        "--max_steps",
        "12",
        "--learning_rate",
        "1e-2",
    ]
    arguments += ["--per_device_train_batch_size", "2", "--output_dir", tmp_path / "out", *samples]
    status, output, _ = run(*arguments)
    assert status == 0
    train, evaluation = losses(tmp_path / "out")
    assert train[12] < 0.7 * train[1] and evaluation[12] < 0.7 * train[1]
    assert "has no effect" not in output


def test_bad_conversations_are_one_sentence(run, inputs, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"src": "x", "tgt": "y"}\n{"src": "x"}\n')
    status, _, output = run(*inputs, "--input_dir", bad, "--output_dir", tmp_path / "out")
    assert status == 2 and f"{bad}, line 2: src and tgt " in output and output.count("\n") == 1
    assert not (tmp_path / "out").exists()
