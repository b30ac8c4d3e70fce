"""The Chinese documents have the headings and commands of the English ones, and links that lead somewhere."""

import re
from pathlib import Path

import document_commands
import generated_pages
import pytest
from places import ROOT

pytestmark = pytest.mark.sampled

CHINESE = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").rglob("*.zh-CN.md"))]
PAIRS = [(file.with_name(file.name.replace(".zh-CN", "")), file) for file in CHINESE]
LINK = re.compile(r"\]\(([^)\s]+)\)")

both = pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda file: file.name)
every = pytest.mark.parametrize(
    "document", [file for pair in PAIRS for file in pair], ids=lambda file: file.name
)


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


@both
def test_the_commands_are_the_same(english, chinese):
    commands, translated = (
        [(command.text, command.kind) for command in document_commands.commands(page)]
        for page in (english, chinese)
    )
    assert commands == translated


@both
def test_the_headings_have_the_same_levels(english, chinese):
    levels, translated = (re.findall(r"^(#+) ", read(page), re.MULTILINE) for page in (english, chinese))
    assert levels == translated


@both
def test_the_two_pages_link_to_each_other(english, chinese):
    assert f"]({chinese.name})" in read(english) and f"]({english.name})" in read(chinese)


@every
def test_every_link_leads_somewhere(document):
    for link in LINK.findall(read(document)):
        file, _, anchor = link.partition("#")
        if file.startswith("http"):
            continue
        target = document.parent / file if file else document
        assert target.exists(), link
        if anchor and not generated_pages.MARK.match(read(target)):  # the build writes the whole page
            titles = re.findall(r"^#+ (.*)$", read(target), re.MULTILINE)
            known = [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles]
            assert anchor in known, link


@every
def test_a_guide_is_linked_from_the_readme(document):
    assert all(f"({name})" in read(ROOT / "README.md") for name in ("docs/guide.md", "docs/guide.zh-CN.md"))
