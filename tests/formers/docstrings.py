"""Conversations about the standard library: a function's name, and what its docstring says."""

import importlib
import inspect
import json
from pathlib import Path

MODULES = ("calendar", "fractions", "inspect", "ipaddress", "pathlib", "random", "shutil", "statistics")
HELD_OUT = 4


def conversations() -> list[tuple[str, str]]:
    """(question, answer)"""
    questions = []
    for name in MODULES:
        for word, value in inspect.getmembers(importlib.import_module(name), inspect.isfunction):
            text = inspect.getdoc(value)
            if text:
                questions.append((f"What does {name}.{word} do?", text[:120]))
    return questions


def texts() -> list[str]:
    return [text for turn in conversations() for text in turn]


def write(folder: Path) -> None:
    """``<stage>-train.jsonl`` and ``<stage>-eval.jsonl`` for sft, pt and dpo, in ERNIEKit's format.

    What DPO is to reject is the answer backwards.
    """
    turns = conversations()
    for part, chosen in (("eval", turns[:HELD_OUT]), ("train", turns[HELD_OUT:])):
        rows = {
            "sft": [{"src": [question], "tgt": [answer]} for question, answer in chosen],
            "pt": [{"text": [f"{question} {answer}"]} for question, answer in chosen],
            "dpo": [
                {"src": [question], "tgt": [], "response": [answer, answer[::-1]], "sort": [1, 0]}
                for question, answer in chosen
            ],
        }
        for stage, lines in rows.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"{stage}-{part}.jsonl").write_text(text, encoding="utf-8")
