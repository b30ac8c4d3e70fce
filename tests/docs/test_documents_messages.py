"""The messages in the user's guide are the product's, and so are the names of arguments and programs."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from places import ROOT

from llm_npu import config

pytestmark = pytest.mark.sampled

GUIDES = [ROOT / "docs/guide.md", ROOT / "docs/guide.zh-CN.md"]
READERS = [*GUIDES, ROOT / "README.md", ROOT / "README.zh-CN.md"]
BEGIN, END = "<!-- symptoms -->\n", "<!-- end -->"
SPAN = re.compile(r"`([^`]+)`")


def symptoms(guide: Path) -> list[list[str]]:
    """The cells of each row of the table of symptoms."""
    table = guide.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def messages_of(source: ast.AST) -> list[str]:
    """Every text of a Python program, with "..." for what is put into it."""
    messages = []
    for node in ast.walk(source):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
            messages.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            messages.append(node.value)
    return messages


@pytest.fixture(scope="module")
def texts():
    """Every text of the product, in Python and in the C++ of the collectives."""
    files = [
        file for room in ("llm_npu", "paddle_fused", "virtual_npu") for file in (ROOT / room).rglob("*.py")
    ]
    all_texts = [text for file in files for text in messages_of(ast.parse(file.read_text(encoding="utf-8")))]
    for file in (ROOT / "virtual_npu/csrc/collectives").glob("*.cc"):
        all_texts.append(re.sub(r'"\s*\+[^";]*\+\s*"', "...", file.read_text(encoding="utf-8")))
    return all_texts


MESSAGES = sorted({span for row in symptoms(GUIDES[0]) for span in SPAN.findall(row[0]) if " " in span})


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_table_is_in_the_product(texts, message):
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    assert any(pattern.search(text) for text in texts)


def test_both_tables_have_the_same_messages_and_commands():
    english, chinese = (
        [[sorted(SPAN.findall(cell)) for cell in row] for row in symptoms(guide)] for guide in GUIDES
    )
    assert english == chinese
    assert len(english) > 25 and all(len(row) == 3 for row in english)


def arguments() -> set[str]:
    """The names of all arguments of the training script, and of every program that uses argparse."""
    flags = set(config.flags())
    for folder in ("llm_npu", "paddle_fused", "scripts", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            flags |= set(re.findall(r"""["']--([\w-]+)["']""", file.read_text(encoding="utf-8")))
    return flags | {"help", "config", "export"}  # export: of msprof


@pytest.mark.parametrize("document", READERS, ids=lambda document: document.name)
def test_arguments_and_programs_are_what_there_is(document):
    known = arguments()
    for span in SPAN.findall(document.read_text(encoding="utf-8")):
        if "..." in span or "\n" in span:
            continue
        for name in re.findall(r"(?<!\S)--([\w-]+)", span):
            assert name in known, span
        if match := re.match(r"python (?:-m ([\w.]+)|(\S+\.py))", span):
            module, script = match.groups()
            assert importlib.util.find_spec(module) if module else (ROOT / script).is_file(), span
