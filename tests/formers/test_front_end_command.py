"""``llm-npu formers`` prepares each process of a job, and says which switches do nothing."""

import ast
import dataclasses
import importlib.util
import json
import os
import shlex
import sysconfig
from pathlib import Path

import pytest

from llm_npu.core.errors import UserError
from llm_npu.formers import __main__ as command
from llm_npu.formers import switches

pytestmark = pytest.mark.sampled

# What a rank of any job does: it imports the library, then modules that take Paddle's functions by name.
RANK = """
import importlib.util, subprocess, sys
assert importlib.util.find_spec("paddleformers")  # which somebody may ask before
import paddleformers
from paddle.incubate.nn.functional import fused_rms_norm_ext
from paddle.nn.functional.flash_attention import flashmask_attention
import paddle
print(paddle.get_device(), fused_rms_norm_ext(paddle.randn([2, 8]), paddle.ones([8]))[0].shape)
rows = paddle.full([1, 1, 16, 1], 16, dtype="int32")
query = paddle.randn([1, 16, 2, 64])
print(flashmask_attention(query, query, query, rows, causal=True).shape)
if len(sys.argv) == 1:
    print(subprocess.run(["python", __file__, "child"], capture_output=True, text=True).stdout)
"""


def test_a_process_and_its_child_are_prepared(run_python, tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    done = run_python("-m", "llm_npu.formers", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shapes = ["npu:0 [2, 8]", "[1, 16, 2, 64]"]
    assert done.stdout.replace("paddle.Size(", "").replace(")", "").split("\n") == [*shapes, *shapes, "", ""]
    assert "VIRTUAL NPU" in done.stderr
    assert "llm_npu.formers: rms_norm, float32: 1 calls, ascend, rms_norm_npu" in done.stderr


def test_another_process_is_left_alone(run_python):
    """The launcher, for example: it imports neither paddle nor a library of models."""
    program = "import sys; print('paddle' in sys.modules, 'llm_npu' in sys.modules)"
    assert run_python("-m", "llm_npu.formers", "-c", program).stdout == "False False\n"


def test_another_sitecustomize_runs_too(run_python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    done = run_python("-m", "llm_npu.formers", "-c", "print('program')", PYTHONPATH=str(tmp_path))
    # In the command itself, and in the program that replaces it.
    assert done.stdout.splitlines() == ["the other one", "the other one", "program"], done.stderr


def test_a_sitecustomize_among_the_packages_is_refused(tmp_path, monkeypatch):
    """paddleformers-cli puts that folder in front of PYTHONPATH's."""
    (tmp_path / "sitecustomize.py").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="sitecustomize"):
        command.environment()


def test_the_environment_as_shell_commands(run_python):
    done = run_python("-m", "llm_npu.formers", "--env", PADDLE_XCCL_BACKEND=None)
    exported = dict(shlex.split(line)[1].split("=", 1) for line in done.stdout.splitlines())
    assert exported["PYTHONPATH"].split(os.pathsep)[0].endswith(str(Path("llm_npu/core/site")))
    assert Path(exported["CUSTOM_DEVICE_ROOT"]).is_dir()
    assert exported["PADDLE_XCCL_BACKEND"] == "npu"  # for Paddle's launcher


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0)])
def test_usage(run_python, arguments, code):
    done = run_python("-m", "llm_npu.formers", *arguments)
    assert done.returncode == code and "usage: " in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train"], "train: no file was given"),
        (["train", "none.yaml"], "train: there is no file none.yaml"),
    ],
)
def test_bad_input_is_one_sentence(run_python, tmp_path, arguments, sentence):
    done = run_python("-m", "llm_npu.formers", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {sentence}; accepted: a YAML or JSON file. Name one.\n",
    )


def test_without_paddleformers(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install \"\.\[paddleformers\]\""):
        command.check(["train", "job.yaml"])


def test_switches_without_effect(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("bf16: true\nuse_sparse_flash_attn: true\nfuse_softmax_mask: true\n")
    assert [line.partition(" does nothing. ")[0] for line in switches.without_effect([str(file)])] == [
        "use_sparse_flash_attn: True",
        "fuse_softmax_mask: True",
    ]
    (sentence,) = switches.without_effect([str(tmp_path / "none.yaml"), "bf16=false"])
    assert "bf16, fp16 or float32" in sentence


@pytest.mark.parametrize("text", ["", "- a list", "a: [", json.dumps({"bf16": True})])
def test_files_that_say_nothing_about_them(tmp_path, text):
    file = tmp_path / "job.json"
    file.write_text(text)
    assert switches.without_effect([str(file)]) == []


def test_every_key_that_paddleformers_parses_is_known():
    from llm_npu.patches import paddleformers as patches

    patches.apply()
    from paddleformers.cli.hparams import parser

    parsed = {field.name for kind in parser._TRAIN_ARGS for field in dataclasses.fields(kind) if field.init}
    assert parsed <= switches.known_keys()
    named = switches.WITHOUT_EFFECT.keys() - {"fuse_gate_detach_matmul", "use_fast_layer_norm"}
    assert named <= switches.known_keys()


@pytest.mark.slow
def test_keys_without_effect_are_those_that_its_source_does_not_read():
    """PaddleFormers' classes of these families, its trainer and its data read none of these keys."""
    root = Path(importlib.util.find_spec("paddleformers").origin).parent
    unread = {name for name, (values, why) in switches.WITHOUT_EFFECT.items() if "read" in why and not values}
    unread -= {"use_fast_layer_norm"}  # handed to the model's configuration, which no model reads
    families = ("llama", "qwen2", "qwen3", "qwen3_moe", "ernie4_5", "ernie4_5_moe", "deepseek_v3")
    folders = ("trainer", "datasets", "nn", "peft", "cli/train/sft", "cli/train/dpo")
    readers = [*folders, *(f"transformers/{family}" for family in families)]
    definitions = ("sft_config.py", "data_config.py", "dpo_argument.py", "lora_config.py")
    for reader in readers:
        for file in (root / reader).rglob("*.py"):
            if file.name in definitions:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    assert node.attr not in unread, f"{file}: {node.attr}"


def test_keys_that_do_nothing_are_reported(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    keys = {"use_fp8": True, "tp_async_allreduce": True, "cp_comm_type": "p2p", "lazy_data_processing": False}
    keys |= {"recompute_granularity": "selective", "model_name_or_path": str(tmp_path)}
    (tmp_path / "job.yaml").write_text(json.dumps(keys))
    sentences = switches.without_effect([str(tmp_path / "job.yaml"), "presence_penalty=1"])
    del keys["model_name_or_path"]
    assert {sentence.partition(":")[0] for sentence in sentences} == {*keys, "presence_penalty"}
    assert all(" does nothing. " in sentence for sentence in sentences)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe"}')
    sentences = switches.without_effect([str(tmp_path / "job.yaml")])  # which computes parts of layers again
    assert not any(sentence.startswith("recompute_granularity") for sentence in sentences)


def test_what_fails_on_one_rank_is_said_before_the_run(tmp_path, monkeypatch):
    file = tmp_path / "job.yaml"
    file.write_text("stage: DPO\nfine_tuning: full\n")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0")
    (sentence,) = switches.without_effect([str(file)])
    assert sentence.startswith("stage: DPO")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    assert switches.without_effect([str(file)]) == []


def test_unknown_keys_are_refused_with_the_nearest(tmp_path):
    (tmp_path / "job.yaml").write_text("device: npu\nmax_stps: 3\n")
    with pytest.raises(UserError, match=r"'max_stps' .* max_steps"):
        switches.check([str(tmp_path / "job.yaml")])
    (tmp_path / "job.yaml").write_text("device: npu\n")
    switches.check([str(tmp_path / "job.yaml"), "max_steps=3"])
    with pytest.raises(UserError, match=r"'lora_rnk' is not a key"):
        switches.check([str(tmp_path / "job.yaml"), "lora_rnk=3"])


@pytest.mark.parametrize("key", switches.SPLIT_SEQUENCES)
def test_split_sequences_are_refused(tmp_path, key):
    file = tmp_path / "job.yaml"
    file.write_text(f"device: npu\n{key}: 2\n")
    with pytest.raises(UserError, match=f"{key} is 2, .* use tensor_model_parallel_size .*") as caught:
        switches.check([str(file)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["sep_parallel_size=1", "context_parallel_size=-1"])
def test_sequences_of_one_rank_are_accepted(tmp_path, setting):
    (tmp_path / "job.yaml").write_text("device: npu\n")
    switches.check([str(tmp_path / "job.yaml"), setting])


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "9" * 5000,
        "a: !!int ''",
        "a: &a [*a]",
        "a: " + "[" * 900,
        '"\\U00110000": 1',
        "? [1]\n: 2",
        "\x00",
    ],
)
def test_hostile_files_are_left_to_paddleformers(tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    try:
        switches.check([str(tmp_path / "job.yaml")])
    except UserError as error:
        assert len(str(error)) < 300
    assert isinstance(switches.without_effect([str(tmp_path / "job.yaml")]), list)
