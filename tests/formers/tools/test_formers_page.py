"""The table of tools in docs/formers.md is true: each row runs, on a tiny Llama, or is refused as it says."""

import re
import shlex

import pytest
import run_inputs
from places import ROOT

PAGE = ROOT / "docs/formers.md"
TRAIN = "python scripts/run_llama_npu.py"
# Program -> arguments that make it small, unless the command gives them itself.
SMALL = {
    "scripts/run_llama_npu.py": {
        "model_name_or_path": "model",
        "input_dir": "text",
        "data_cache": ".",
        "output_dir": "ran",
        "overwrite_output_dir": "true",
        "split": "80,20,0",
        "max_seq_length": "32",
        "max_steps": "3",
        "save_steps": "3",
        "logging_steps": "1",
        "per_device_train_batch_size": "2",
        "max_evaluate_steps": "1",
    },
    "scripts/accept_card.py": {"device": "virtual_npu", "cards": "1", "only": "adamw training"},
    "scripts/generate.py": {"max_new_tokens": "4"},
    "llm-npu doctor": {"disk_gb": "0.001"},
    "benchmarks ops": {"quick": "", "only": "swiglu 64x256 float32 fwd", "rounds": "1"},
    "benchmarks varlen": {
        "batch": "3",
        "longest": "20",
        "width": "64",
        "depth": "2",
        "vocabulary": "50",
        "rounds": "1",
    },
}
WHOLE = ("swiglu 64x256 float32 fwd",)  # values that are one word, for all their blanks
ENDS_WITH_1 = "--explain"  # a log in which a cause is found


def rows() -> list[tuple[list[str], str]]:
    """The commands of each row, and the sentence that refuses the last one; "" if it works."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Other tools\n")[2]
    tools = []
    for line in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        tool, _, answer = line.rpartition(" | ")
        sentence = re.fullmatch(r"works|refused: `(.+)`", answer)[1]
        tools.append((re.findall(r"`([^`]+)`", tool), sentence or ""))
    return tools


def words(command: str) -> tuple[dict[str, str], list[str]]:
    """Variables and arguments of a command of the table, made small."""
    first, *others = shlex.split(f"{TRAIN} {command}" if command.startswith("--") else command)
    variables = {}
    while first not in ("python", "llm-npu"):
        name, _, variables[name] = first.partition("=")
        first, *others = others
    if first == "llm-npu":
        others = ["-m", "llm_npu", *others]
    program = others[1] if others[0] == "-m" else others[0]
    if program == "llm_npu":
        program = f"llm-npu {others[2]}"
    if program == "benchmarks":
        program += f" {others[2]}"
    flags = {word[2:].partition("=")[0] for word in others if word.startswith("--")}
    for name, value in SMALL.get(program, {}).items():
        if name not in flags and ENDS_WITH_1 not in others:
            others += [f"--{name}", *([value] if value in WHOLE else value.split())]
    return variables, [str(ROOT / word) if word.startswith("scripts/") else word for word in others]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama, a text, and the log of a run that failed."""
    inputs_folder = tmp_path_factory.mktemp("tools")
    run_inputs.inputs(inputs_folder)
    (inputs_folder / "run.log").write_text("error code is 507015\n")
    return inputs_folder


def test_the_table_is_read():
    assert sum(not sentence for _, sentence in rows()) > 15
    assert sum(bool(sentence) for _, sentence in rows()) > 5


@pytest.mark.slow
@pytest.mark.parametrize(("commands", "sentence"), rows(), ids=lambda value: str(value)[:50])
def test_a_row_of_the_table(run_python, folder, commands, sentence):
    for command in commands:
        variables, arguments = words(command)
        variables |= {"VIRTUAL_NPU_QUIET": "1", "LLM_NPU_CACHE": str(folder)}
        done = run_python(*arguments, cwd=folder, **variables)
        if sentence and command == commands[-1]:
            assert done.returncode != 0 and sentence in done.stderr.splitlines()[-1], done.stderr
        else:
            assert done.returncode == (ENDS_WITH_1 in arguments), done.stdout + done.stderr
