"""The Chinese documents say what the English ones say: the same commands, outputs, links and tables."""

import re
from pathlib import Path

import document_commands
import generated_pages
import pytest
from places import ROOT

pytestmark = pytest.mark.sampled

CHINESE = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").rglob("*.zh-CN.md"))]
PAIRS = [(file.with_name(file.name.replace(".zh-CN", "")), file) for file in CHINESE]
WRITTEN = re.compile(r"<!-- [\w ]+: python .*?<!-- end -->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
YES_AND_NO = {"yes": "支持", "some": "部分支持", "no": "不支持", "-": "-"}

both = pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda file: file.name)
every = pytest.mark.parametrize(
    "document", [file for pair in PAIRS for file in pair], ids=lambda file: file.name
)


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def tables(document: Path) -> list[list[list[str]]]:
    """The cells of each table, without the line below its head.

    Tables that programs write stand in the English pages only; the Chinese ones link to them.
    """
    text = re.sub(WRITTEN, "", read(document))
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    cells = [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
        for table in found
    ]
    return [[head, *rows] for head, _, *rows in cells]


@both
def test_the_commands_are_the_same(english, chinese):
    ours, theirs = (
        [(command.text, command.kind) for command in document_commands.commands(document)]
        for document in (english, chinese)
    )
    assert ours == theirs


@both
def test_the_other_blocks_are_the_same(english, chinese):
    """What a command prints, and files: but for the comments of programs."""
    ours, theirs = (
        [
            (block.language, re.sub(r"\s*#.*", "", block.text))
            for block in document_commands.blocks(document)
            if block.language != "bash"
        ]
        for document in (english, chinese)
    )
    assert ours == theirs


@both
def test_the_sections_are_as_many(english, chinese):
    ours, theirs = (re.findall(r"^(#+) ", read(document), re.MULTILINE) for document in (english, chinese))
    assert ours == theirs


@both
def test_the_links_lead_to_the_same_pages(english, chinese):
    def links(document):
        found = [link.partition("#")[0].replace(".zh-CN.md", ".md") for link in LINK.findall(read(document))]
        return set(found) - {"", english.name}

    assert links(english) == links(chinese)
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


@both
def test_the_tables_have_the_same_rows(english, chinese):
    """Code is not translated, and yes is yes in both."""
    ours, theirs = tables(english), tables(chinese)
    assert [len(table) for table in ours] == [len(table) for table in theirs]
    for table, translated in zip(ours, theirs, strict=True):
        for row, same in zip(table[1:], translated[1:], strict=True):
            assert len(row) == len(same)
            for cell, other in zip(row, same, strict=True):
                assert YES_AND_NO.get(cell, other) == other, (row, same)
                if re.fullmatch(r"`[^`]+`|[\d.]+", cell):
                    assert cell == other, (row, same)


@every
def test_a_guide_is_linked_from_the_readme(document):
    assert all(f"({name})" in read(ROOT / "README.md") for name in ("docs/guide.md", "docs/guide.zh-CN.md"))
