"""The results on each release of Paddle, read from pytest's junit files, and docs/versions.md."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from building.installed_paddle import RELEASES as _BY_PROCESSOR
from llm_npu.core import json_rows

RELEASES = _BY_PROCESSOR["x86_64"]
ROOT = Path(__file__).resolve().parents[2]
FOLDER, PAGE = ROOT / "scripts/versions/results", ROOT / "docs/versions.md"
PROJECT = "paddle-ascend-llm"
YES, REFUSED, FAILED, SKIPPED, NOT_RUN = "yes", "refused", "failed", "skipped", "not run"
INSTALL, SUITE = "install keeps Paddle", "the test suite"
# The files of a quick run.
SAMPLE = (
    *("test_rms_norm_npu.py", "test_swiglu_npu.py", "test_fused_rope_npu.py", "test_rotary.py"),
    *("test_captured.py", "test_virtual_npu_face.py", "test_patches.py", "test_imports.py"),
)
# The rows of the page; the others are named as the tests in test_features.py.
FEATURES = (
    *(INSTALL, "main job", "resume", "tensor parallel", "sequence parallel"),
    *("sharding stage 1", "sharding stage 2", "sharding stage 3", "pipeline"),
    *("auto-parallel, dygraph", "auto-parallel, static", "auto-parallel, pipeline"),
    *("profiler", "dry run", "checkpoints of another release", "upstream tests", SUITE),
)
BEGINNING = """# Releases of Paddle

`nox` writes this page from its results (`noxfile.py`); nothing here ran on a card. On each release, the
project is installed as a user would: `pip install paddlepaddle==3.0.0`, then, in a clone,
`pip install ".[paddlenlp,test]"`. Each row is tested with a command of the guide, or with the test suite. A
cell contains yes with the result, or no with the error message or the failure.
"""
ENDING = """
The rows between the first and the last are runs of `llm-npu train`; those of parallelism use two processes
for five steps. Tensor, sequence and auto-parallel without stages must match one process's losses to the
resolution of bfloat16; the others must lower their loss. A resumed run must end with exactly the loss of an
uninterrupted run. A quick run has a sample of the test suite.

`nox -s "paddle(3.2.2)"` repeats one release, `nox -R -s "paddle(3.2.2)" -- -k sharding` some of its rows, and
`nox -s page` writes this page.
"""


class Outcome(NamedTuple):
    """Whether a feature works (YES), is rejected with an error message, or failed; and the evidence."""

    state: str
    words: str


class Results:
    """The results of one release: ``features`` by name."""

    def __init__(self, folder: Path, release: str):
        self.release, self.file = release, folder / f"{release}.json"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.features: dict[str, dict] = known.get("features", {})

    def add(self, outcomes: dict[str, Outcome], **about: str) -> list[str]:
        """Replace older outcomes of the same features, write the file, and return the failed features."""
        self.features |= {name: {**outcome._asdict(), **about} for name, outcome in outcomes.items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json_rows.dumps({"release": self.release, "features": self.features}))
        return [name for name, outcome in outcomes.items() if outcome.state == FAILED]

    def add_file(self, junit: Path, **about: str) -> list[str]:
        """Add the outcomes of a junit file, as `add`. An interrupted run may leave no file or no tests."""
        cases = list(ElementTree.parse(junit).iter("testcase")) if junit.is_file() else []
        if not cases:
            return []
        features = [case for case in cases if "test_features" in case.get("classname")]
        return self.add(of_features(features) if features else {SUITE: of_suite(cases)}, **about)


def of_features(cases: Collection[Element]) -> dict[str, Outcome]:
    """The outcomes of test_features.py; a skipped test has none."""
    outcomes = {}
    for case in cases:
        state, message = _state(case)
        if state != SKIPPED:
            words = {item.get("name"): item.get("value") for item in case.iter("property")}.get("words", "")
            name = case.get("name")
            feature = name.partition("[")[2][:-1] or name.removeprefix("test_").replace("_", " ")
            outcomes[feature] = Outcome(state, message or words)
    return outcomes


def of_suite(cases: Collection[Element]) -> Outcome:
    """The numbers of passed, skipped and failed tests."""
    states = [(case.get("name"), *_state(case)) for case in cases]
    failed = [f"{name}: {message[:120]}" for name, state, message in states if state == FAILED]
    skipped = sum(state in (SKIPPED, REFUSED) for _, state, _ in states)
    passed = len(states) - len(failed) - skipped
    words = f"{passed} passed" + (f", {skipped} skipped" if skipped else "")
    if failed:
        return Outcome(FAILED, f"{len(failed)} failed, {words}; {'; '.join(failed[:3])}")
    return Outcome(YES if passed else FAILED, words)


def _state(case: Element) -> tuple[str, str]:
    """The state of a test, and its message."""
    for child in case:
        message = " ".join((child.get("message") or "").split())
        if child.tag in ("failure", "error"):
            return FAILED, message[:300]
        if child.tag == "skipped":
            return (REFUSED if child.get("type") == "pytest.xfail" else SKIPPED), message
    return YES, ""


def kept(before: dict[str, str], after: dict[str, str]) -> Outcome:
    """Whether an installation left Paddle unchanged, and the other changed packages."""
    changed = [
        f"{name} {version} became {after.get(name, 'none')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]
    is_kept = "paddlepaddle" in before and after.get("paddlepaddle") == before["paddlepaddle"]
    return Outcome(YES if is_kept else FAILED, "; ".join(changed) or "no package changed")


def frozen(text: str) -> dict[str, str]:
    """{name: version} of the output of ``pip freeze``, without this project."""
    pairs = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {name.lower(): version for name, version in pairs if name != PROJECT}


def page(folder: Path = FOLDER) -> str:
    """The whole page."""
    results = [Results(folder, release) for release in RELEASES]
    head = [_row("", RELEASES), "|---" * (len(RELEASES) + 1) + "|"]
    lines = [BEGINNING, *head]
    lines += [_row(feature, [_cell(known, feature) for known in results]) for feature in FEATURES]
    lines += ["\n## What was run\n", *head]
    for about in ("commit", "python", "run"):
        values = [dict.fromkeys(feature[about] for feature in known.features.values()) for known in results]
        lines.append(_row(about, [", ".join(value) or NOT_RUN for value in values]))
    return "\n".join([*lines, ENDING])


def _cell(known: Results, feature: str) -> str:
    outcome = known.features.get(feature)
    if outcome is None:
        return NOT_RUN
    return f"yes ({outcome['words']})" if outcome["state"] == YES else f"no: {outcome['words']}"


def _row(title: str, cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells)
    return f"| {title} | {' | '.join(escaped)} |"
