"""Bad input of ``llm_npu.pipeline``: one sentence, before anything is loaded."""

import json
import shutil

import pytest

import llm_npu
from llm_npu.core.errors import UserError

# Arguments, files to remove, and the sentence.
REFUSED = {
    "task": ({"task": "translation"}, [], "task 'translation'; accepted: text-generation"),
    "device": ({"device": "npu:99"}, [], "The device npu:99 does not exist"),
    "unknown device": ({"device": "gpu"}, [], "The device 'gpu' is unknown"),
    "tokenizer": ({}, ["tokenizer.json"], "contains neither tokenizer.json nor tokenizer.model"),
    "other tokenizer": ({"tokenizer": "nowhere"}, [], "'nowhere' is not a local directory"),
    "weights": ({}, ["model.safetensors"], r"contains no weights \(\*\.safetensors\)"),
    "configuration": ({}, ["config.json"], "has no config.json"),
    "model": ({"model": "AI-Research/Qwen2.5-7B"}, [], "not a local "),
    "no folder": ({"model": 3}, [], "model is a int; accepted: the folder of a checkpoint"),
    "option": ({"max_tokens": 3}, [], "option 'max_tokens'; .* Did you mean max_new_tokens?"),
    "switch": ({"use_fused_rmsnorm": False}, [], "Did you mean use_fused_rms_norm?"),
    "switch's value": ({"use_fused_rope": 1}, [], "use_fused_rope is 1; accepted: True or False"),
    "setting": ({"batch_size": 0}, [], "batch_size is 0; accepted: 1 or more"),
    "range": ({"top_p": 2, "do_sample": True}, [], "top_p is 2; accepted: above 0, up to 1"),
    "no effect": ({"top_p": 0.5}, [], "top_p has no effect with greedy decoding; .*do_sample=True"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_are_refused(folder, tmp_path, case):
    arguments, removed, sentence = REFUSED[case]
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    for name in removed:
        (copy / name).unlink()
    with pytest.raises(UserError, match=sentence):
        llm_npu.pipeline(**{"task": "text-generation", "model": copy} | arguments)


def test_a_bad_generation_config_is_refused(with_config):
    with pytest.raises(UserError, match=r"generation_config.json: top_k is -1; accepted: 0"):
        llm_npu.pipeline("text-generation", with_config(top_k=-1))


def test_switches_are_refused():
    with pytest.raises(UserError, match="option 'use_fused_rmsnorm'"):
        llm_npu.apply_fused_kernel(use_fused_rmsnorm=False)
    with pytest.raises(UserError, match="use_fused_rope is 0; accepted: True or False"):
        llm_npu.apply_fused_kernel(use_fused_rope=0)
    with pytest.raises(UserError, match="option 'use_fused_linear_cross_entropy'"):
        llm_npu.pipeline("text-generation", "here", use_fused_linear_cross_entropy=True)


@pytest.fixture(scope="module")
def pipe(folder):
    return llm_npu.pipeline("text-generation", folder, max_new_tokens=4)


@pytest.mark.parametrize(
    ("prompts", "options", "sentence"),
    [
        (3, {}, "a prompt is a int; accepted: text, messages"),
        ([], {}, "no prompts"),
        ("", {}, "prompt is empty"),
        ([3], {}, "a prompt is 3; accepted: text, or messages"),
        ("\ud800", {}, "not valid Unicode"),
        ("x" * 99, {}, "64 positions"),
        ([{"role": "user"}], {}, "the user message 1 must be text"),
        ([{"role": "judge", "content": "x"}], {}, "role is 'judge'; accepted: system, user"),
        ([{"role": "assistant", "content": "x"}], {}, "the last message is an answer"),
        ("x", {"max_tokens": 3}, "option 'max_tokens'"),
        ("x", {"batch_size": "2"}, "batch_size is '2'; accepted: 1 or more"),
        ("x", {"streamer": 3}, "streamer is a int; accepted: a function of a text"),
        (["x", "y"], {"streamer": print}, "streamer .*not 2"),
        ("x", {"streamer": print, "num_beams": 2}, "streamer .*num_beams=1"),
    ],
)
def test_calls_are_refused(pipe, prompts, options, sentence):
    with pytest.raises(UserError, match=sentence):
        pipe(prompts, **options)


def test_messages_need_a_template(pipe, monkeypatch):
    monkeypatch.setattr(pipe.tokenizer, "chat_template", None)
    with pytest.raises(UserError, match="no chat template"):
        pipe([{"role": "user", "content": "x"}])


@pytest.mark.slow
def test_nothing_is_loaded_before(run_python, folder, tmp_path):
    """One process refuses everything, and has not imported paddle."""
    cases = []
    for case, (arguments, removed, sentence) in REFUSED.items():
        copy = tmp_path / case
        shutil.copytree(folder, copy)
        for name in removed:
            (copy / name).unlink()
        cases.append([{"task": "text-generation", "model": str(copy)} | arguments, sentence])
    program = """
import json, re, sys
from llm_npu import apply_fused_kernel, pipeline
for given, sentence in json.loads(sys.argv[1]):
    try:
        pipeline(**given)
    except ValueError as error:
        assert re.search(sentence, str(error)), error
    else:
        sys.exit(f"{given} passed")
try:
    apply_fused_kernel(use_fused_rmsnorm=False)
except ValueError:
    sys.exit(int("paddle" in sys.modules))
"""
    done = run_python("-c", program, json.dumps(cases))
    assert done.returncode == 0, done.stderr
