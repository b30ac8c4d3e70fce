r"""The fenced blocks of a document, and the shell commands in those of bash.

    ```bash          commands for a reader to run, one to a line; a line that ends in \ goes on
    ```bash card     they need an Ascend card
    ```bash setup    they install something
    ```text          directly behind a block of bash: lines that its last command prints, among others, in
                     this order; "..." stands for anything, and a number for any number

A comment behind a command may hold "exit code 1": the one it ends with, or, as in "exit code 1 if ...",
one that it ends with as well as with 0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("", "card", "setup")
FENCED = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMENTED = re.compile(r"""((?:[^'"#]|'[^']*'|"[^"]*"|(?<=\S)#)*?)(?:(?:^|\s)#\s*(.*))?""")
VARIABLE = re.compile(r"(\.\.\.|\d[\d.,]*(?:e[+-]?\d+)?)")  # in what a document shows of an output


@dataclass(frozen=True)
class Block:
    """``info``: what stands behind the language."""

    language: str
    info: str
    text: str


@dataclass(frozen=True)
class Command:
    """``text`` without its comment, in one line; ``shown``: the lines that the document says it prints."""

    text: str
    comment: str
    kind: str
    shown: tuple[str, ...] = ()

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """Those that the document says."""
        match = re.search(r"exit code (\d+)( if)?", self.comment)
        return (0,) if not match else (0, int(match[1])) if match[2] else (int(match[1]),)


def blocks(document: Path) -> list[Block]:
    """In their order."""
    return [Block(*groups) for groups in FENCED.findall(document.read_text(encoding="utf-8"))]


def commands(document: Path) -> list[Command]:
    """Of all blocks of bash, in their order."""
    result, every = [], blocks(document)
    for block, following in itertools.zip_longest(every, every[1:]):
        if block.language != "bash":
            continue
        assert block.info in KINDS, f"{document.name}: ```bash {block.info} is none of {KINDS}"
        lines = re.sub(r"\s*\\\n\s*", " ", block.text).splitlines()
        parts = [COMMENTED.fullmatch(line).groups(default="") for line in lines]
        parts = [(text.strip(), comment) for text, comment in parts if text.strip()]
        shown = following.text.splitlines() if following and following.language == "text" else []
        for text, comment in parts:
            last = (text, comment) == parts[-1]
            result.append(Command(text, comment, block.info, tuple(shown) if last else ()))
    return result


def missing(shown: Sequence[str], printed: str) -> str:
    """The first of the lines ``shown`` that is not in ``printed`` behind those before it; "" if all are."""
    lines = iter(printed.splitlines())
    for line in shown:
        pattern = _pattern(line)
        if line.strip() != "..." and not any(re.fullmatch(pattern, other.rstrip()) for other in lines):
            return line
    return ""


def _pattern(line: str) -> str:
    parts = VARIABLE.split(line.rstrip())
    for position, part in enumerate(parts):
        if position % 2 == 0:
            parts[position] = re.sub(r"(\\ )+", " +", re.escape(part))
        else:
            parts[position] = ".*" if part == "..." else r"\d[\d.,]*(?:e[+-]?\d+)?"
    return "".join(parts)
