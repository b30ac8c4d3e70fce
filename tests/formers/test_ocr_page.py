"""The commands of docs/ocr.md run, and its small PaddleOCR-VL learns to read held-out words."""

import json
import re
import shlex

import document_commands
import front_ends
import pytest
from places import ROOT
from vision_recipes import PUBLISHED_MODEL

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/ocr.md"
SECONDS = 1800  # of one command on two idle cores, with a margin
SCORE = re.compile(r"exact match: (\d+) of (\d+) ")
REQUIRED = 0.9  # of the held-out words


def run(run_python, command: str, folder):
    """The ended process of a command of the page, as a user types it in the project's folder."""
    variables, words = {}, shlex.split(command)
    while words[0] != "llm-npu":
        name, _, variables[name] = words.pop(0).partition("=")
    variables["MASTER_PORT"] = front_ends.free_port()
    done = run_python("-m", "llm_npu", *words[1:], cwd=folder, timeout=SECONDS, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def test_the_commands_of_the_page(run_python, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "model").mkdir()  # the published model
    (tmp_path / "model/config.json").write_text(json.dumps(PUBLISHED_MODEL))
    commands = document_commands.commands(PAGE)
    outputs = {command.text: run(run_python, command.text, tmp_path).stdout for command in commands}
    for command in commands:
        lacking = document_commands.missing(command.shown, outputs[command.text])
        assert not lacking, f"{lacking!r} is shown, and was not printed:\n{outputs[command.text][-2000:]}"
    (score,) = filter(None, map(SCORE.search, outputs.values()))
    assert int(score[1]) >= REQUIRED * int(score[2]), score[0]
    assert (tmp_path / "ocr/run.png").read_bytes().startswith(b"\x89PNG")
