"""The console script llm-npu, and its callers in scripts/."""

import importlib
import os
import subprocess
import sys

import pytest
import tomllib
from places import ROOT

from llm_npu.__main__ import COMMANDS, main

pytestmark = pytest.mark.sampled

CALLERS = {
    "run_llama_npu.py": "train",
    "generate.py": "generate",
    "prepare_data.py": "prepare_data",
    "check_dtypes.py": "check_dtypes",
    "accept_card.py": "accept_card",
}
ENTRY_POINT = "import {module}, sys; sys.exit({module}.{function}())"


def test_the_console_script_lists_the_commands_without_importing_frameworks(run_python):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["llm-npu"]
    module, _, function = declared.partition(":")
    program = ENTRY_POINT.format(module=module, function=function)
    heavy = "import atexit, sys; atexit.register(lambda: print({'paddle', 'rich', 'yaml'} & {*sys.modules}));"
    done = run_python("-c", heavy + program, "--help")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 24 and lines.pop() == "set()"
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_main(name):
    assert callable(importlib.import_module(f"llm_npu.{COMMANDS[name].module}").main)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tran"], "did you mean train?"),
        (["prepare-dat"], "did you mean prepare_data?"),
        (["quux"], "--help"),
        (["--model_type", "llama"], "'--model_type'"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest_name(words, sentence, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert sentence in printed.err


def test_hyphens_in_a_name_are_underscores(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["prepare-data", "--help"])
    assert ended.value.code == 0 and "--output_prefix" in capsys.readouterr().out


def test_without_a_command_the_list_goes_to_stderr(capsys):
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "train" in printed.err


@pytest.mark.parametrize("script", CALLERS)
def test_the_scripts_call_the_commands(script):
    text = (ROOT / "scripts" / script).read_text()
    assert f'main(["{CALLERS[script]}", *sys.argv[1:]])' in text


def test_a_started_file_hides_no_module(run_python):
    """A launcher starts llm_npu/__main__.py, beside which there is a folder data/."""
    done = run_python(ROOT / "llm_npu/__main__.py", "doctor", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: llm-npu doctor"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("started", ["nproc", "launch", "console script"])
def test_two_ranks_train_by_the_command(tmp_path, started):
    console_script = tmp_path / "llm-npu"  # as pip writes it
    console_script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom llm_npu.__main__ import main\nsys.exit(main())\n"
    )
    console_script.chmod(0o755)
    run = ["train", "--max_steps", "2", "--num_hidden_layers", "1", "--max_seq_length", "32"]
    run += ["--save_strategy", "no", "--do_eval", "false", "--output_dir", str(tmp_path / "out")]
    launch = ["-m", "paddle.distributed.launch", "--devices", "0,1", "--log_dir", str(tmp_path / "log")]
    program = {
        "nproc": ["-m", "llm_npu", *run, "--nproc", "2"],
        "launch": [*launch, str(ROOT / "llm_npu/__main__.py"), *run],
        "console script": [*launch, str(console_script), *run],
    }[started]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert sum('"loss"' in line for line in lines) == 2
