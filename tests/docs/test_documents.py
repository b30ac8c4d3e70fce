"""The commands of the README and of the pages NAMES run, and print what the documents show.

They run in a clone, with the project installed elsewhere as by the README's first command, as somebody would
type them, with less to do: arguments of ``SMALLER`` are added. A command that reads what another one writes
runs after it, whichever tests are asked for.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import clones
import document_commands
import pytest
from packaging.requirements import Requirement
from places import ROOT

from building.installed_paddle import RELEASES
from llm_npu import config
from llm_npu.acceptance import command as acceptance
from llm_npu.commands.doctor import _parser as doctor_parser
from llm_npu.models import presets

pytestmark = pytest.mark.sampled

NAMES = ("README.md", "docs/guide.md", "docs/numerics.md", "docs/virtual_npu.md", "docs/performance.md")
DOCUMENTS = [ROOT / name for name in NAMES]
EVERY = [command for document in DOCUMENTS for command in document_commands.commands(document)]
RUN = "python scripts/run_llama_npu.py"

# What is looked at in every run of the tests; the rest is slow.
QUICK = (
    f"{RUN} --overwrite_output_dir",
    f"{RUN} --help",
    "python -m virtual_npu train.py --its --own arguments",
)

# Program -> arguments that make it do less, unless the command gives them itself.
SMALLER = {
    "scripts/run_llama_npu.py": {
        "input_dir": "corpus",
        "split": "80,20,0",
        "num_hidden_layers": "2",
        "max_seq_length": "32",
        "max_steps": "12",
        "save_steps": "6",
        "save_total_limit": "9",
        "logging_steps": "1",
        "per_device_train_batch_size": "2",
        "max_evaluate_steps": "1",
    },
    "scripts/generate.py": {"max_new_tokens": "4"},
    "benchmarks ops": {
        "quick": "",
        "only": "swiglu 64x256 float32 fwd",
        "rounds": "1",
        "contenders": "fused cpu",
    },
    "benchmarks step": {
        "quick": "",
        "rounds": "1",
        "threads": "1",
        "dtype": "float32",
        "contenders": "fused npu",
    },
    "benchmarks varlen": {
        "batch": "3",
        "longest": "20",
        "width": "64",
        "depth": "2",
        "vocabulary": "50",
        "rounds": "1",
    },
    "benchmarks models": {
        "quick": "",
        "rounds": "1",
        "threads": "1",
        "families": "llama",
        "contenders": "unfused,fused",
        "dtype": "float32",
        "ways": "train",
    },
    "benchmarks overlap": {
        "quick": "",
        "dtype": "bfloat16",
        "width": "256",
        "rounds": "1",
        "ratios": "1",
        "only": "matmul_all_reduce forward",
    },
}
LATER = {"max_steps": "14"}  # of a run that goes on from 12 steps
SMALLER_WORDS = {"llama-110m": "llama-tiny", "checkpoint-100": "checkpoint-6"}

TRAIN = """
import sys
from importlib import metadata
import paddle
paddle.set_device("npu")
print(sys.argv[1:], paddle.ones([2]).place)
"""
# In place of a person's shell, with "python" as this interpreter, and "llm-npu" run by it.
SHELL = "import os, sys; os.execvp('bash', ['bash', '-c', sys.argv[1]])"


def words(text: str) -> list[str]:
    """Of one command; an assignment in front of it, such as A=1, is none of them."""
    parts = shlex.split(text)
    while re.match(r"\w+=", parts[0]):
        parts.pop(0)
    return parts


def option(text: str, name: str) -> str | None:
    """What follows ``--name`` in the command, "" if nothing does; None without it."""
    parts = words(text)
    if f"--{name}" not in parts:
        return None
    following = parts[parts.index(f"--{name}") + 1 :]
    return following[0] if following and not following[0].startswith("--") else ""


def program(text: str) -> str:
    """The script or module that Python runs, or "benchmarks NAME"; "" of another command."""
    first, *others = words(text)
    if first != "python":
        return ""
    if others[:2] == ["-m", "benchmarks"]:
        return " ".join(others[1:3])
    return others[1] if others[0] == "-m" else others[0]


def made_by(text: str) -> str | None:
    """The folder, or the beginning of the names, of what the command writes."""
    if program(text) == "scripts/run_llama_npu.py" and "--help" not in text and "--config" not in text:
        return option(text, "output_dir") or "output"
    return option(text, "output_prefix")


def before(text: str) -> list[str]:
    """The commands that make what this one reads."""
    own, resumed = made_by(text), option(text, "resume_from_checkpoint")
    read = [word for word in words(text) if word != own]
    if resumed == "":  # the newest checkpoint of its own folder
        read.append(own)
    earlier = []
    for other in dict.fromkeys(command.text for command in EVERY if command.kind == ""):
        output = made_by(other)
        if output is None or other == text or option(other, "resume_from_checkpoint") is not None:
            continue
        if any(word == output or word.startswith(f"{output}/") for word in read):
            earlier.append(other)
    return earlier


def smaller(text: str) -> str:
    """The command with less to do."""
    for large, small in SMALLER_WORDS.items():
        text = text.replace(large, small)
    options_used = {word[2:].partition("=")[0] for word in words(text) if word.startswith("--")}
    added = dict(SMALLER.get(program(text), {})) if "help" not in options_used else {}
    if "resume_from_checkpoint" in options_used:
        added |= LATER
    more = [f"--{name} {shlex.quote(value) if value else ''}" for name, value in added.items()]
    return " ".join(
        [text, *(word for word, name in zip(more, added, strict=True) if name not in options_used)]
    )


class Folder:
    """The clone ``path`` in which the commands run, each at most once, by ``run_python`` of ``python``."""

    def __init__(self, path: Path, run_python, python: Path = Path(sys.executable)):
        self.path, self._run_python, self._done = path, run_python, {}
        (path / "corpus").mkdir()
        for name in ("bisect.py", "copy.py", "heapq.py", "random.py", "textwrap.py"):
            shutil.copy(Path(os.__file__).parent / name, path / "corpus")
        (path / "train.py").write_text(TRAIN)
        (path / "bin").mkdir()
        for name, program in (("python", ""), ("llm-npu", "-m llm_npu")):
            shim = path / "bin" / name
            shim.write_text(f'#!/bin/sh\nexec "{python}" {program} "$@"\n')
            shim.chmod(0o755)

    def run(self, text: str):
        """What became of the command; those whose results it reads run first."""
        if text not in self._done:
            for other in before(text):
                done = self.run(other)
                assert done.returncode == 0, f"{other}\n{done.stdout}{done.stderr}"
            self._done[text] = self._run_python(
                "-c",
                SHELL,
                smaller(text),
                cwd=self.path,
                PATH=f"{self.path / 'bin'}:{os.environ['PATH']}",
                LLM_NPU_CACHE=str(self.path / "cache"),
            )
        return self._done[text]


@pytest.fixture(scope="module")
def folder(run_python, tmp_path_factory):
    clone = clones.make_clone(tmp_path_factory.mktemp("documents") / "clone")
    site = clones.install(clone, clone / ".venv")
    return Folder(clone, functools.partial(run_python, PYTHONPATH=str(site)))


def of_kind(kind: str) -> list[document_commands.Command]:
    """The commands with this mark, each once; what several documents show of one, together."""
    commands_of_kind: dict[str, document_commands.Command] = {}
    for command in EVERY:
        if command.kind == kind:
            same = commands_of_kind.get(command.text, command)
            commands_of_kind[command.text] = max(
                same, command, key=lambda alike: (alike.shown != (), alike.comment)
            )
    return list(commands_of_kind.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=command.text, marks=[] if command.text in QUICK else pytest.mark.slow)
        for command in of_kind("")
    ],
)
def test_a_command_runs_and_prints_what_is_shown(folder, command):
    check(folder, command)


def check(folder: Folder, command: document_commands.Command) -> None:
    done = folder.run(command.text)
    assert done.returncode in command.exit_codes, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    lacking = document_commands.missing(command.shown, done.stdout)
    assert not lacking, f"{lacking!r} is shown, and was not printed in this place:\n{done.stdout}"


@pytest.mark.slow
def test_the_guide_from_its_set_up_on(run_elsewhere, tmp_path):
    """Downloads and compiles, as a reader does who begins with nothing."""
    clone = tmp_path / "clone"
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in files[:-1]:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    guide = document_commands.commands(ROOT / "docs/guide.md")
    set_up, *_ = [command.text for command in guide if command.kind == "setup"]
    set_up = set_up.replace("python3", shlex.quote(sys.executable))
    done = run_elsewhere("bash", "-c", set_up, cwd=clone, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    python = clone / ".venv/bin/python"
    folder = Folder(clone, functools.partial(run_elsewhere, python), python)
    for command in guide:
        if command.kind == "":
            check(folder, command)


def test_the_quick_commands_are_in_the_documents():
    assert set(QUICK) <= {command.text for command in EVERY}


def test_everything_that_is_read_is_made():
    """A name in a command is a file of the repository, of the test's folder, or another command's result."""
    outputs = [outputs for command in EVERY if command.kind == "" and (outputs := made_by(command.text))]
    for command in of_kind(""):
        for name in ("input_dir", "config", "compare"):
            value = option(command.text, name) if command.text.startswith(("python", "llm-npu")) else None
            if value is not None:
                there = (ROOT / value).exists() or value in ("corpus/",)
                assert there or any(f"{value}/".startswith(f"{output}/") for output in outputs), command.text


def test_every_preset_that_is_named_is_one():
    for command in EVERY:
        if "--model_name_or_path" in command.text:
            assert presets.is_preset(option(command.text, "model_name_or_path")), command.text


def test_the_readmes_file_of_arguments_is_read(tmp_path):
    (block,) = (block for block in document_commands.blocks(DOCUMENTS[0]) if block.language == "yaml")
    file = tmp_path / "run.yaml"
    file.write_text(block.text)
    run = config.parse([str(file)])
    assert run.training.output_dir == "out3" and not run.fused.use_fused_rope


# What a machine with a card has besides: from CANN and its driver.
OF_A_CARD = ("npu-smi info", "source /usr/local/Ascend/ascend-toolkit/set_env.sh")
SCRIPTS_OF_A_CARD = {  # to the device that their arguments name
    "scripts/run_llama_npu.py": lambda argv: config.parse(argv).device,
    "scripts/accept_card.py": lambda argv: acceptance.parse(argv).device,
}


@pytest.mark.parametrize("command", of_kind("card"), ids=lambda command: command.text)
def test_what_needs_a_card_is_spelt_right(command):
    if command.text in OF_A_CARD:
        return
    first, *arguments = words(command.text)
    if first == "pip":
        (wanted,) = (Requirement(word) for word in arguments if "==" in word)
        assert wanted.name == "paddle-custom-npu"  # not published for every release of Paddle
        assert str(wanted.specifier).removeprefix("==") in RELEASES["x86_64"]
        return
    if first == "llm-npu":
        assert arguments[0] == "doctor"
        assert doctor_parser().parse_args(arguments[1:]).device == "npu:card"
    else:
        assert first == "python", command.text
        assert SCRIPTS_OF_A_CARD[arguments[0]](arguments[1:]) == "npu:card"


@pytest.mark.parametrize("command", of_kind("setup"), ids=lambda command: command.text)
def test_what_sets_up_names_what_there_is(command):
    """CI runs the second of them itself."""
    for part in command.text.split(" && "):
        first, *arguments = shlex.split(part)
        assert Path(first).name in ("python3", "pip", "python", "pytest")
        if extras := re.findall(r"\.\[([\w,]+)\]", part):
            project = (ROOT / "pyproject.toml").read_text()
            assert all(f"\n{extra} = [" in project for extra in extras[0].split(","))
        for word in arguments:
            assert not word.endswith(".py") or (ROOT / word).is_file()
