"""The test suite on one release, and the test files of each feature."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from upstream_tests.execution import read_record

from .environment import Environment
from .results import FAILED, YES, Outcome

WHOLE = "the test suite"
# In a short run, besides the samples of the groups.
SAMPLE = ("test_patches.py", "test_imports.py")
KNOWN = "tests.json"  # next to the logs: {file: {test: (outcome, message)}} of the last run
ALL = "tests"  # key of a failure before the first test
SILENT = 1800  # seconds without the end of a test, after which the process is killed


class Group(NamedTuple):
    """Files of a feature: ``patterns``, without those of ``without``; ``sample`` are those of a short run."""

    patterns: tuple[str, ...]
    sample: tuple[str, ...]
    without: tuple[str, ...] = ()

    def files(self, names: Iterable[str], quick: bool) -> list[str]:
        """Those of ``names`` that belong to it."""
        if quick:
            return [name for name in names if name in self.sample]
        return [name for name in names if matches(name, self.patterns) and not matches(name, self.without)]


CAPTURED = ("test_captured.py", "test_attention_captured.py")
GROUPS = {
    "operators on npu": Group(
        patterns=(
            "test_operator_*.py",
            "test_*_npu.py",
            "test_flash_attention*.py",
            "test_attention*.py",
            "test_norms*.py",
            "test_rotary.py",
            "test_gated.py",
            "test_fused_adamw*.py",
            "test_linear_cross_entropy.py",
            "test_dropout_add_norm.py",
        ),
        sample=("test_rms_norm_npu.py", "test_swiglu_npu.py", "test_fused_rope_npu.py", "test_rotary.py"),
        without=(*CAPTURED, "test_operator_docs.py"),
    ),
    "operators in captured programs": Group(patterns=CAPTURED, sample=("test_captured.py",)),
    "virtual NPU runtime": Group(
        patterns=("test_virtual_npu_*.py", "test_collectives*.py"), sample=("test_virtual_npu_face.py",)
    ),
}


class Suite(NamedTuple):
    """Recorded outcomes: {test: (outcome, message)}."""

    tests: dict[str, tuple[str, str]]

    def outcome(self, files: Collection[str] | None = None) -> Outcome:
        """Whether all tests of ``files``, or of all files, have passed; with their numbers."""
        tests = {
            test: found
            for test, found in self.tests.items()
            if files is None or test == ALL or _file(test) in files
        }
        failed = {test: message for test, (outcome, message) in tests.items() if outcome == "failed"}
        skipped = sum(outcome == "skipped" for outcome, _ in tests.values())
        passed = len(tests) - len(failed) - skipped
        words = f"{passed} passed" + (f", {skipped} skipped" if skipped else "")
        if failed or not passed:
            some = "; ".join(
                f"{test.rpartition('/')[2]}: {text[:120]}" for test, text in list(failed.items())[:3]
            )
            return Outcome(FAILED, f"{len(failed)} failed, {words}" + (f"; {some}" if some else ""))
        return Outcome(YES, words)


def run(
    environment: Environment, sources: Path, wanted: Collection[str], quick: bool, failed: bool
) -> dict[str, Outcome]:
    """The outcomes of the ``wanted`` features, from one run of all their files in the clone ``sources``.

    With ``failed``, only files with failures are run; the others keep their last outcomes.
    """
    places = {path.name: path for path in sorted((sources / "tests").rglob("test_*.py"))}
    names = sorted(places)
    groups = {name: group.files(names, quick) for name, group in GROUPS.items() if name in wanted}
    if WHOLE in wanted:
        groups[WHOLE] = [name for name in names if name in SAMPLE] if quick else names
    chosen = [name for name in names if any(name in files for files in groups.values())]
    known = environment.logs.parent / KNOWN
    before = json.loads(known.read_text()) if failed and known.exists() else {}
    good = {name for name in chosen if before.get(name) and _is_good(before[name])}
    tests = _run_files(environment, sources, [places[name] for name in chosen if name not in good])
    by_file = {name: before[name] for name in good}
    for test, found in tests.items():
        by_file.setdefault(_file(test), {})[test] = found
    if not quick:
        known.write_text(json.dumps(by_file))
    suite = Suite({test: found for file in by_file.values() for test, found in file.items()})
    outcomes = {name: suite.outcome(files) for name, files in groups.items() if name != WHOLE}
    if WHOLE in wanted:
        state, words = suite.outcome()
        outcomes[WHOLE] = Outcome(state, f"a sample of {len(chosen)} files: {words}" if quick else words)
    return outcomes


def _file(test: str) -> str:
    """test_a.py of tests/ops/test_a.py::test_this; a key that is not a test is returned unchanged."""
    return Path(test.partition("::")[0]).name


def _is_good(tests: dict[str, tuple[str, str]]) -> bool:
    return all(outcome != "failed" for outcome, _ in tests.values())


def _run_files(environment: Environment, sources: Path, files: list[Path]) -> dict[str, tuple[str, str]]:
    """{test: (outcome, message)}. After a test that kills the process, the remaining files still run."""
    script = Path(__file__).with_name("one_pytest.py")
    tests: dict[str, tuple[str, str]] = {}
    while files:
        record = environment.logs / f"tests-from-{files[0].stem}.jsonl"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("")
        options = ("-p", "no:cacheprovider", "-q", "-rfE", "--tb=short", "--continue-on-collection-errors")
        done = environment.run(
            "tests",
            *(script, record, *options, *files),
            limit=SILENT,
            folder=sources,
            watched=record,
        )
        running = read_record(record, tests)
        if done.code in (0, 1, 5) and not running:  # passed, some failed, or there was none
            break
        tests[running or ALL] = ("failed", f"the process ended ({done.how}): {done.last_line[:200]}")
        if not running:
            break
        file, _, test = running.partition("::")
        number = [each.name for each in files].index(Path(file).name)
        # A file that kills the process on import does so before the tests of all others.
        files = files[number + 1 :] if test else files[:number] + files[number + 1 :]
    return tests


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether the name matches one of ``patterns``, such as ``sharding*``."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
