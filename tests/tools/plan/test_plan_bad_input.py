"""Bad input of the planner gets a sentence, and it ends without a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from plans import DEGREES, PUBLISHED, SIZES, model

from llm_npu.core import program
from llm_npu.plan import __main__ as command

pytestmark = pytest.mark.sampled
LIBRARY = pytest.mark.paddlenlp  # which has the model or the flag of the test


def plan_output(capsys, *argv: str) -> tuple[int, str, str]:
    code = program.run(command.main, [str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--cards", "8"], "--model_name_or_path"),
        (["--model_name_or_path", "llama2-7"], "--cards"),
        (["--model_name_or_path", "llama2-7", "--cards", "8"], "Did you mean llama2-7b?"),
        pytest.param(
            ["--model_name_or_path", "gpt2", "--cards", "8"], "the planner does not model", marks=LIBRARY
        ),
        ([*PUBLISHED, "--card", "910x"], "--card is 910x; accepted: "),
        ([*PUBLISHED, "--tensor_parallel_degree", "3"], "does not divide --cards 32"),
        ([*PUBLISHED, "--cards", "many"], "invalid int value: 'many'"),
        ([*PUBLISHED, "--global_batch_size", "7"], "choose a multiple of 32"),
        (
            ["--model_name_or_path", "qwen2.5-3b", "--cards", "4", "--tensor_parallel_degree", "4"],
            "num_key_value",
        ),
        ([*PUBLISHED, "--search", "--tensor_parallel_degree", "8"], "omit one of the two"),
        (["--model_name_or_path", "llama2-7b", "--cards", "8", "--search"], "needs --global_batch_size"),
        (
            ["--model_name_or_path", "llama2-70b", "--cards", "2", "--global_batch_size", "8", "--search"],
            "fit on 2",
        ),
        pytest.param([*PUBLISHED, "--overlap", "some"], "--overlap is 'some'", marks=LIBRARY),
        ([*PUBLISHED, "--sequence_length", "8"], "unrecognized arguments: --sequence_length"),
        ([*PUBLISHED, "--max_seq_length", "8192"], "has 4096 positions"),
        ([*PUBLISHED[:4], "--global_batch_size", "0"], "--global_batch_size is 0, but must be"),
        ([*PUBLISHED, "--recompute", "some"], "'some' is not "),
        ([*PUBLISHED, "--recompute_granularity", "full_attn"], "without --recompute;"),
        ([*PUBLISHED, "--overlap", "pipelined:8"], "pipelined:8 cannot be planned; use pipelined:4"),
        ([*PUBLISHED, *DEGREES[:4], "--mask", "documents"], "passes no masks from stage to stage"),
        ([*PUBLISHED, "--mask", "band"], "--mask is 'band', but must be one of causal, documents"),
        (["--model_name_or_path", "deepseek-v3", "--cards", "8", "--tensor_parallel_degree", "8"], "whole"),
        (["--model_name_or_path", "", "--cards", "8"], "'' is neither a preset"),
        (["--model_name_or_path", "deepseekv3", "--cards", "8"], "Did you mean deepseek-v3?"),
        ([*PUBLISHED[:2], "--cards", "1000000007"], "at most 131072"),
        ([*PUBLISHED[:4], "--global_batch_size", "1" + 20 * "0"], "at most 2097152"),
        (
            ["--model_name_or_path", "qwen2.5-7b", "--cards", "17", "--global_batch_size", "3", "--search"],
            "a multiple of 17",
        ),
        ([*PUBLISHED, "--search", "--max_seq_length", "8192"], "has 4096 positions"),
        pytest.param(
            ["--model_name_or_path", "qwen1.5-moe-a2.7b", "--cards", "8", "--tensor_parallel_degree", "2"],
            "does not split the experts of qwen1.5-moe-a2.7b; omit it",  # the planner refuses other remedies
            marks=LIBRARY,
        ),
        pytest.param(
            [
                *("--model_name_or_path", "mixtral-8x7b", "--cards", "16"),
                *("--tensor_parallel_degree", "2", "--expert_parallel_degree", "2"),
            ],
            "omit --tensor_parallel_degree",
            marks=LIBRARY,
        ),
        (
            ["--model_name_or_path", "qwen3-30b-a3b", "--cards", "8", "--tensor_parallel_degree", "8"],
            "num_key_value_heads 4",
        ),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(capsys, argv, words):
    code, out, err = plan_output(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "not_given"),
    [
        (["--tensor_parallel_degree", "3"], "--pipeline_parallel_degree"),
        (["--global_batch_size", "7"], "--per_device_train_batch_size"),
        (["--virtual_pp_degree", "2"], "--pipeline_parallel_degree is"),
        (["--mask", "documents", "--pipeline_parallel_degree", "4"], "--packing"),
    ],
)
def test_a_sentence_names_no_option_that_was_not_given(capsys, argv, not_given):
    code, out, err = plan_output(capsys, *PUBLISHED, *argv)
    assert (code, out) == (2, "") and argv[0] in err and not_given not in err


@pytest.mark.parametrize("name", SIZES)
def test_a_config_without_sizes_is_refused(capsys, tmp_path, name):
    folder = model(tmp_path, **{name: None})
    code, _, err = plan_output(capsys, "--model_name_or_path", folder, "--cards", 8)
    if name == "num_key_value_heads":  # a Llama has as many as heads
        assert code == 0
    else:
        assert code == 2 and f"config.json has no {name}, " in err


def test_a_vision_language_model_is_refused_with_the_measure_to_use(capsys, tmp_path):
    folder = model(tmp_path, model_type="qwen2_5_vl", vision_config={"hidden_size": 144})
    code, out, err = plan_output(capsys, "--model_name_or_path", folder, "--cards", 8)
    assert (code, out) == (2, "") and "PaddleOCR-VL" in err and err.count("\n") == 1
    assert "VIRTUAL_NPU_DRY=1 llm-npu formers examples/ocr/count_memory.py" in err
    assert (ROOT / "examples/ocr/count_memory.py").is_file()


@pytest.mark.paddlenlp
def test_an_moe_config_without_its_experts_is_refused(capsys, tmp_path):
    folder = model(tmp_path, model_type="mixtral", num_key_value_heads=None)
    code, _, err = plan_output(capsys, "--model_name_or_path", folder, "--cards", 8)
    assert code == 2 and "has no num_key_value_heads, num_local_experts, num_experts_per_tok, " in err
    folder = model(tmp_path, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert plan_output(capsys, "--model_name_or_path", folder, "--cards", 8)[0] == 0


@pytest.mark.slow
@LIBRARY
def test_it_ends_without_a_traceback(start_python):
    """After Ctrl-C, which comes here during a search of a minute; and with nobody to print to."""
    run_arguments = ("--model_name_or_path", "deepseek-v3", "--cards", 65536, "--global_batch_size", 524288)
    process = start_python("-m", "llm_npu.plan", *run_arguments, "--search")
    status = Path(f"/proc/{process.pid}/status")
    handled = 0
    while not handled >> (signal.SIGTERM - 1) & 1:  # until the planner handles signals, SIGINT first
        assert process.poll() is None
        handled = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    assert out.startswith("stopped by SIGINT") and out.count("\n") == 1

    for argv in ([*PUBLISHED, *DEGREES], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = run(*argv, stdout=writer)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, ""), argv
    closed = run(*PUBLISHED, *DEGREES, preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (0, "")


def run(*argv, **fields):
    command = [sys.executable, "-m", "llm_npu.plan", *argv]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, **fields)


@pytest.mark.paddlenlp
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen2.5-7b", "with PaddleFormers only; omit it"),
        ("mixtral-8x7b", "mixtral-8x7b into stages; omit it"),
    ],
)
def test_pipelines_of_models_that_are_not_cut_are_refused(capsys, name, words):
    argv = ["--model_name_or_path", name, "--cards", 32, "--pipeline_parallel_degree", 4]
    code, out, err = plan_output(capsys, *argv)
    assert (code, out) == (2, "") and words in err
