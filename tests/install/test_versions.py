"""The results on releases of Paddle (scripts/versions), and docs/versions.md. Nothing is installed."""

import textwrap

import pytest
from places import ROOT, TESTS
from versions import results
from versions.results import FAILED, FEATURES, REFUSED, RELEASES, YES, Outcome, Results

pytestmark = pytest.mark.sampled

ABOUT = {"commit": "abc1234", "python": "3.10.13", "run": "full"}


def complete(folder, release):
    """The results of a release on which everything works."""
    known = Results(folder, release)
    known.add({name: Outcome(YES, "seen") for name in FEATURES}, **ABOUT)
    return known


def rows(text):
    """{first cell: the others} of all tables of a page."""
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first.strip(): [cell.strip() for cell in others] for first, *others in cells}


def test_the_page_is_that_of_the_results():
    """`nox -s page` writes it again."""
    assert results.PAGE.read_text() == results.page()


def test_a_later_result_replaces_an_earlier_one_of_the_same_feature_only(tmp_path):
    first = Results(tmp_path, "3.0.0")
    first.add({"pipeline": Outcome(FAILED, "exit code 1"), "profiler": Outcome(YES, "a report")}, **ABOUT)
    Results(tmp_path, "3.0.0").add({"pipeline": Outcome(YES, "loss 9 to 8")}, **ABOUT)
    features = Results(tmp_path, "3.0.0").features
    assert features["pipeline"] == {"state": YES, "words": "loss 9 to 8", **ABOUT}
    assert features["profiler"]["words"] == "a report"
    assert [path.name for path in tmp_path.iterdir()] == ["3.0.0.json"]


def test_an_interrupted_run_changes_no_result(tmp_path):
    (tmp_path / "junit.xml").write_text("<testsuites><testsuite tests='0'/></testsuites>")
    known = complete(tmp_path, "3.0.0")
    before = dict(known.features)
    assert known.add_file(tmp_path / "junit.xml", **ABOUT) == known.add_file(tmp_path / "none", **ABOUT) == []
    assert known.features == before


def test_cells_and_what_was_run(tmp_path):
    complete(tmp_path, "3.3.1")
    complete(tmp_path, "3.0.0").add({"pipeline": Outcome(REFUSED, "a | b needs Paddle 3.1")}, **ABOUT)
    complete(tmp_path, "3.1.1").add({"resume": Outcome(YES, "seen")}, **ABOUT | {"python": "3.11.7"})
    cells = rows(results.page(tmp_path))
    refused, missing = "no: a \\| b needs Paddle 3.1", "not run"
    assert cells["pipeline"] == [refused, "yes (seen)", missing, missing, "yes (seen)"]
    assert cells["python"] == ["3.10.13", "3.10.13, 3.11.7", missing, missing, "3.10.13"]
    assert cells["commit"] == ["abc1234", "abc1234", missing, missing, "abc1234"]


def test_every_row_is_a_test():
    """Each row except the installation and the suite is a test of test_features.py."""
    from versions import test_features

    names = set()
    for name, function in vars(test_features).items():
        if name.startswith("test_"):
            marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
            own = {name.removeprefix("test_").replace("_", " ")}
            names |= {case.id for case in marks[0].args[1]} if marks else own
    assert names == set(FEATURES) - {results.INSTALL, results.SUITE}


def test_the_files_of_a_quick_run_exist():
    assert {*results.SAMPLE} <= {path.name for path in TESTS.rglob("test_*.py")}


FREEZE = "numpy==2.2.6\npaddlepaddle=={}\npaddle-ascend-llm==0.1.0\nllm @ file:///a==b\n"


def test_an_installation_that_replaces_paddle():
    before, after = (results.frozen(FREEZE.format(version)) for version in ("3.0.0", "3.3.1"))
    assert before == {"numpy": "2.2.6", "paddlepaddle": "3.0.0"}
    assert results.kept(before, after) == Outcome(FAILED, "paddlepaddle 3.0.0 became 3.3.1")
    assert results.kept(before, {**before, "rich": "14"}).state == YES
    assert results.kept(before, {"paddlepaddle": "3.0.0"}) == Outcome(YES, "numpy 2.2.6 became none")


WRITTEN = {
    "test_rotary.py": "def test_fails():\n    assert 1 == 2\n\ndef test_passes():\n    pass\n",
    "test_crashes.py": """
        import os

        class TestClass:
            def test_ends(self):
                os._exit(7)

            def test_passes(self):
                pass
        """,
    "test_captured.py": """
        import pytest

        def test_skips():
            pytest.skip("on purpose")

        def test_passes():
            pass
        """,
}


@pytest.fixture
def junit(tmp_path, run_python):
    """A function that runs test files, as noxfile.py does, and returns the junit file."""

    def run(files, *options):
        for name, text in files.items():
            (tmp_path / name).write_text(textwrap.dedent(text))
        file = tmp_path / "junit.xml"
        run_python("-m", "pytest", *files, f"--junitxml={file}", *options, cwd=tmp_path)
        return file

    return run


@pytest.mark.slow
def test_a_crash_is_one_failure_and_the_other_tests_run(tmp_path, junit):
    known = Results(tmp_path, "3.0.0")
    assert known.add_file(junit(WRITTEN, "-n", "1"), **ABOUT) == [results.SUITE]
    words = known.features[results.SUITE]["words"]
    assert words.startswith("2 failed, 3 passed, 1 skipped; ") and "crashed" in words


TRIED = """
    import os, sys
    import pytest

    sys.path.insert(0, {root!r})
    os.environ.update(VERSIONS_STEPS="20", VERSIONS_CHECKPOINTS="kept")
    from scripts.versions.test_features import Trial

    @pytest.fixture
    def trial(tmp_path):
        return Trial(tmp_path)

    @pytest.fixture
    def refused(trial):
        trial.run("refused", "-c", "import sys; print('error: it needs Paddle 3.1.'); sys.exit(2)")

    def test_main_job(trial, record_property):
        assert trial.run("works", "-c", "print(1)") == "1\\n"
        record_property("words", "loss 9 to 8")

    def test_profiler(trial, refused):
        pass

    @pytest.mark.parametrize("n", [pytest.param(11, id="pipeline"), pytest.param(9, id="sharding stage 1")])
    def test_two_processes(trial, n):
        trial.run("fails", "-c", f"import os; print('last line', flush=True); os.kill(os.getpid(), {{n}})")

    def test_dry_run():
        pytest.skip("no other release has left one")
    """


@pytest.mark.slow
def test_outcomes_of_features(tmp_path, junit):
    """A refusal, also in a fixture, is neither a success nor a failure; a skipped feature has no result."""
    known = Results(tmp_path, "3.0.0")
    file = junit({"test_features.py": TRIED.format(root=str(ROOT))}, "-n", "0")
    assert known.add_file(file, **ABOUT) == ["pipeline", "sharding stage 1"]
    assert {name: feature["state"] for name, feature in known.features.items()} == {
        "main job": YES,
        "profiler": REFUSED,
        "pipeline": FAILED,
        "sharding stage 1": FAILED,
    }
    assert known.features["main job"]["words"] == "loss 9 to 8"
    assert known.features["profiler"]["words"] == "it needs Paddle 3.1."
    assert "SIGSEGV: last line" in known.features["pipeline"]["words"]


def test_sessions(run_python):
    """noxfile.py can be imported, and has a session for each release."""
    pytest.importorskip("nox", reason="nox is not installed")
    listed = run_python("-m", "nox", "--list", cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    assert all(f"paddle({release})" in listed.stdout for release in RELEASES)
