"""The table of test files: passed, failed, errors, skipped, and the reasons of the failures."""

import fnmatch
import re
import subprocess
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from .execution import OUTCOMES

REASON_CHARACTERS = 160


def explain(result, reasons):
    """(Counter of known reasons, [(test, message)] of unexplained failures) of one file.

    A reason matches if all its patterns do: "file" (of file names), "test" and "message" (regular
    expressions).
    """
    explained, unexplained = Counter(), []
    for test, message in result.failures.items():
        for reason in reasons:
            if (
                fnmatch.fnmatch(result.name, reason.get("file", "*"))
                and re.search(reason.get("test", ""), test)
                and re.search(reason.get("message", ""), message)
            ):
                explained[reason["why"]] += 1
                break
        else:
            unexplained.append((test, message))
    return explained, unexplained


def last_line(message):
    """The error line of a traceback, shortened for a table."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if re.match(r"\(\w+\)|\w*(Error|Exception)\b", line)]
    return (errors or lines)[-1][:REASON_CHARACTERS].replace("|", "\\|")


def row(result, reasons):
    """One line of the table."""
    explained, unexplained = explain(result, reasons)
    why = [f"{count}: {reason}" for reason, count in explained.most_common()]
    kinds = Counter(last_line(message) for _, message in unexplained)
    why += [f"{count} not explained: {kind}" for kind, count in kinds.most_common()]
    skips = Counter(last_line(message) for kind, message in result.tests.values() if kind == "skipped")
    why += [f"{count} skipped by upstream: {reason}" for reason, count in skips.most_common()]
    counts = " | ".join(str(result.count(outcome)) for outcome in OUTCOMES)
    return f"| {result.name} | {counts} | {'; '.join(why)} |"


def commit_of(folder):
    """The commit of a git work tree's root folder; "unknown" if it is not one."""
    git = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True)
    root, _, commit = done.stdout.strip().partition("\n")
    return commit if done.returncode == 0 and Path(root) == folder.resolve() else "unknown"


def report(results, known, checkout):
    """The page in Markdown: the tests' source, the totals, and one table for each group of files."""
    counts = ", ".join(
        f"{sum(result.count(outcome) for result in results)} {outcome}" for outcome in OUTCOMES
    )
    clean = sum(1 for result in results if not result.failures)
    text = [
        "# The npu backend's own unit tests on the virtual NPU",
        "",
        "Written by `scripts/run_upstream_tests.py`; nothing here ran on a card. The tests are those of "
        f"PaddlePaddle/PaddleCustomDevice at `{commit_of(checkout)}`, backends/npu/tests/unittests, run "
        f"unmodified; their harness (op_test.py) is Paddle's at `{commit_of(checkout / 'Paddle')}`, "
        f"also unmodified. They ran with paddlepaddle {version('paddlepaddle')}.",
        "",
        f"**{len(results)} files, {clean} without a failure. Tests: {counts}.**",
    ]
    text += [
        f"- {' '.join(f'`{name}={value}`' for name, value in addition['set'].items())} is set for "
        f"{', '.join(addition['files'])}: {addition['why']}."
        for addition in known["environment"]
    ]
    remaining = list(results)
    for group in known["groups"]:
        members = [r for r in remaining if any(fnmatch.fnmatch(r.name, p) for p in group["files"])]
        remaining = [r for r in remaining if r not in members]
        if members:
            text += ["", f"## {group['title']}", "", "| file | passed | failed | errors | skipped | why |"]
            text += ["|---|---:|---:|---:|---:|---|"]
            text += [row(result, known["reasons"]) for result in members]
    return "\n".join(text) + "\n"


def progress(result):
    """The progress line of a file."""
    counts = [f"{result.count(outcome)} {outcome}" for outcome in OUTCOMES if result.count(outcome)]
    words = ", ".join([*counts, *([result.ending] if result.ended else [])])
    return f"{result.name}: {words or 'no test'} ({result.seconds:.0f} s)"
