"""The results on each release of Paddle, read from pytest's junit files, and docs/versions.md."""

from __future__ import annotations

import fnmatch
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
REFERENCE = RELEASES[-1]  # whose loss the others are compared with
ROOT = Path(__file__).resolve().parents[2]
FOLDER, PAGE = ROOT / "scripts/versions/results", ROOT / "docs/versions.md"
PROJECT = "paddle-ascend-llm"
YES, REFUSED, FAILED, SKIPPED, NOT_RUN = "yes", "refused", "failed", "skipped", "not run"
WHOLE = "the test suite"
CAPTURED = ("test_captured.py", "test_attention_captured.py")
OPERATORS = (
    *("test_operator_*.py", "test_*_npu.py", "test_flash_attention*.py", "test_attention*.py"),
    *("test_norms*.py", "test_rotary.py", "test_gated.py", "test_fused_adamw*.py"),
    *("test_linear_cross_entropy.py", "test_dropout_add_norm.py"),
)
# Rows that are test files of the suite.
GROUPS = {
    "operators on npu": OPERATORS,
    "operators in captured programs": CAPTURED,
    "virtual NPU runtime": ("test_virtual_npu_*.py", "test_collectives*.py"),
}
# The files of a quick run.
SAMPLE = (
    *("test_rms_norm_npu.py", "test_swiglu_npu.py", "test_fused_rope_npu.py", "test_rotary.py"),
    *("test_captured.py", "test_virtual_npu_face.py", "test_patches.py", "test_imports.py"),
)
# The rows of the page. Those that are not in GROUPS are named as the tests in test_features.py.
FEATURES = (
    "install keeps Paddle",
    *GROUPS,
    "main job",
    "resume",
    "tensor parallel",
    "sequence parallel",
    *(f"sharding stage {stage}" for stage in (1, 2, 3)),
    "pipeline",
    *(f"auto-parallel, {kind}" for kind in ("dygraph", "static", "pipeline")),
    "profiler",
    "dry run",
    "checkpoints of another release",
    "upstream tests",
    WHOLE,
)
BEGINNING = """# Releases of Paddle

`nox` writes this page from its results (`noxfile.py`); nothing here ran on a card. On each release, the
project is installed as a user would: `pip install paddlepaddle==3.0.0`, then, in a clone,
`pip install ".[paddlenlp,test]"`. Each row is tested with a command of the guide, or with the tests of the
feature. A cell contains yes with the result, or no with the error message or the failure.
"""
ENDING = """
The rows of the operators and of the virtual NPU's runtime are tests, part of the suite. The other rows are
runs of `llm-npu train` on two processes for five steps. Tensor, sequence and auto-parallel without stages
must match one process's losses to the resolution of bfloat16; the others must lower their loss. A resumed run
must end with exactly the loss of an uninterrupted run.

`nox -s "paddle(3.2.2)"` repeats one release, `nox -R -s "paddle(3.2.2)" -- -k sharding` some of its rows, and
`nox -s page` writes this page.
"""


class Outcome(NamedTuple):
    """Whether a feature works (YES), is rejected with an error message, or failed; and the evidence."""

    state: str
    words: str


class Results:
    """The results of one release: ``features`` by name, and ``losses`` of the main job by number of steps."""

    def __init__(self, folder: Path, release: str):
        self.release, self.file = release, folder / f"{release}.json"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.features: dict[str, dict] = known.get("features", {})
        self.losses: dict[str, dict] = known.get("losses", {})

    def add(self, outcomes: dict[str, Outcome], **about: str) -> None:
        """Replace older outcomes of the same features, and write the file."""
        for name, outcome in outcomes.items():
            self.features[name] = {**outcome._asdict(), **about}
        content = {"release": self.release, "features": self.features, "losses": self.losses}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json_rows.dumps(content))

    def add_file(self, junit: Path, **about: str) -> list[str]:
        """Add the outcomes of a junit file, and the main job's last loss; return the failed features.

        An interrupted run may have no file, or a file without tests.
        """
        cases = list(ElementTree.parse(junit).iter("testcase")) if junit.is_file() else []
        if not cases:
            return []
        features = [case for case in cases if "test_features" in case.get("classname")]
        for case in features:
            properties = _properties(case)
            if "loss" in properties:
                run = {name: about[name] for name in ("python", "commit")}
                self.losses[properties["steps"]] = {"loss": float(properties["loss"]), **run}
        outcomes = of_features(features) if features else of_suite(cases, about["run"] == "quick")
        self.add(outcomes, **about)
        return [name for name, outcome in outcomes.items() if outcome.state == FAILED]


def read(folder: Path) -> list[Results]:
    """The results of each release."""
    return [Results(folder, release) for release in RELEASES]


def of_features(cases: Collection[Element]) -> dict[str, Outcome]:
    """The outcomes of test_features.py; a skipped test has none."""
    outcomes = {}
    for case in cases:
        state, message = _state(case)
        if state != SKIPPED:
            name = case.get("name")
            feature = name.partition("[")[2][:-1] or name.removeprefix("test_").replace("_", " ")
            outcomes[feature] = Outcome(state, message or _properties(case).get("words", ""))
    return outcomes


def of_suite(cases: Collection[Element], is_quick: bool) -> dict[str, Outcome]:
    """The outcomes of the suite and of GROUPS."""
    by_file = {}
    for case in cases:
        parts = f"{case.get('classname')}.{case.get('name')}".split(".")
        file = next((f"{part}.py" for part in parts if part.startswith("test_")), "")
        by_file.setdefault(file, []).append(case)
    outcomes = {}
    for group, patterns in GROUPS.items():
        without = () if patterns == CAPTURED else CAPTURED
        files = [file for file in by_file if _matches(file, patterns) and file not in without]
        if files:
            outcomes[group] = _counted([case for file in files for case in by_file[file]])
    state, words = _counted(cases)
    outcomes[WHOLE] = Outcome(state, f"a sample of {len(by_file)} files: {words}" if is_quick else words)
    return outcomes


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


def page(results: Sequence[Results]) -> str:
    """The whole page."""
    head = [_row("", [known.release for known in results]), "|---" * (len(results) + 1) + "|"]
    steps = sorted({int(steps) for known in results for steps in known.losses}, reverse=True)
    return "\n".join(
        [
            BEGINNING,
            *head,
            *(_row(feature, [_cell(known, feature) for known in results]) for feature in FEATURES),
            "\n## The main job's last loss\n",
            *head,
            *(_row(f"after {n} steps", [_loss(known, n, results) for known in results]) for n in steps),
            f"\nIn brackets: the difference from {REFERENCE}, on the same text.",
            "\n## What was run\n",
            *head,
            *(
                _row(title, [_abouts(known, name) for known in results])
                for title, name in (("commit", "commit"), ("Python", "python"), ("run", "run"))
            ),
            ENDING,
        ]
    )


def missing(results: Sequence[Results]) -> dict[str, list[str]]:
    """{release: its untested features}, without complete releases."""
    names = {known.release: [name for name in FEATURES if name not in known.features] for known in results}
    return {release: features for release, features in names.items() if features}


def _properties(case: Element) -> dict[str, str]:
    return {item.get("name"): item.get("value") for item in case.iter("property")}


def _state(case: Element) -> tuple[str, str]:
    """The state of a test, and its message."""
    for child in case:
        message = " ".join((child.get("message") or "").split())
        if child.tag in ("failure", "error"):
            return FAILED, message[:300]
        if child.tag == "skipped":
            return (REFUSED if child.get("type") == "pytest.xfail" else SKIPPED), message
    return YES, ""


def _counted(cases: Collection[Element]) -> Outcome:
    """The numbers of passed, skipped and failed tests."""
    states = [(case.get("name"), *_state(case)) for case in cases]
    failed = [f"{name}: {message[:120]}" for name, state, message in states if state == FAILED]
    skipped = sum(state in (SKIPPED, REFUSED) for _, state, _ in states)
    passed = len(states) - len(failed) - skipped
    words = f"{passed} passed" + (f", {skipped} skipped" if skipped else "")
    if failed:
        return Outcome(FAILED, f"{len(failed)} failed, {words}; {'; '.join(failed[:3])}")
    return Outcome(YES if passed else FAILED, words)


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _cell(known: Results, feature: str) -> str:
    outcome = known.features.get(feature)
    if outcome is None:
        return NOT_RUN
    return f"yes ({outcome['words']})" if outcome["state"] == YES else f"no: {outcome['words']}"


def _loss(known: Results, steps: int, results: Sequence[Results]) -> str:
    """The loss, and its distance from the reference. Another Python version trains on a different text."""
    record = known.losses.get(str(steps))
    if record is None:
        return NOT_RUN
    reference = next((other.losses.get(str(steps)) for other in results if other.release == REFERENCE), None)
    if known.release == REFERENCE:
        return f"{record['loss']:.4f}"
    if reference is None:
        return f"{record['loss']:.4f} ({REFERENCE} not run)"
    if reference["python"] != record["python"]:
        return f"{record['loss']:.4f} (text of Python {record['python']}, not of {reference['python']})"
    return f"{record['loss']:.4f} ({record['loss'] - reference['loss']:+.4f})"


def _abouts(known: Results, name: str) -> str:
    values = dict.fromkeys(str(feature[name]) for feature in known.features.values() if name in feature)
    return ", ".join(values) or NOT_RUN


def _row(title: str, cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells)
    return f"| {title} | {' | '.join(escaped)} |"
