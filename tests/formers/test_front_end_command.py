"""``python -m llm_npu.formers`` prepares each process of a job, and says which switches do nothing."""

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
    with pytest.raises(UserError, match="would run instead"):
        command.environment()


def test_the_environment_as_shell_commands(run_python):
    done = run_python("-m", "llm_npu.formers", "--env", PADDLE_XCCL_BACKEND=None)
    exported = dict(shlex.split(line)[1].split("=", 1) for line in done.stdout.splitlines())
    assert exported["PYTHONPATH"].split(os.pathsep)[0].endswith(str(Path("llm_npu/formers/site")))
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
    assert [each.partition(" does nothing. ")[0] for each in switches.without_effect([str(file)])] == [
        "use_sparse_flash_attn: True",
        "fuse_softmax_mask: True",
    ]
    (sentence,) = switches.without_effect([str(tmp_path / "none.yaml"), "bf16=false"])
    assert sentence == (
        "bf16: False does nothing. PaddleFormers takes the dtype from compute_type: bf16, fp16 or float32."
    )


@pytest.mark.parametrize("text", ["", "- a list", "a: [", json.dumps({"bf16": True})])
def test_files_that_say_nothing_about_them(tmp_path, text):
    file = tmp_path / "job.json"
    file.write_text(text)
    assert switches.without_effect([str(file)]) == []
