"""docs/fine_tuning.md: its example runs, its conversations are read, and its tables name what there is."""

import re

import pytest
from places import ROOT

from llm_npu import config
from llm_npu.data.text.conversations import Conversations

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "fine_tuning.md").read_text()


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[1]


def test_the_example_runs(run_program):
    result = run_program(block("python"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines() == [
        "[[0, 1, 2, 3, 4, 5, 0, 1]] documents([[6, 2]])",
        "[[0, 1, 2, 0, 1, 2, 3]] documents([[3, 4]])",
    ]


def test_the_conversations_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(block("json"))
    conversations = list(Conversations.find(str(tmp_path)).conversations())
    assert len(conversations) == 6 and all(
        conversation.messages[-1]["content"] in "45" for conversation in conversations
    )


def test_the_tables_name_every_choice():
    for name in ("packing", "padding"):
        table = re.search(rf"\| `--{name}` \|.*?\n\n", TEXT, re.DOTALL)[0]
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(config.flags()[name].choices)
