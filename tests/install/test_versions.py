"""scripts/run_versions.py: how what was found is kept, and the page of it. Nothing is installed."""

import json
import os
import re
import select
import signal
import sys
import textwrap

import pytest
import run_versions
from places import TESTS
from versions import RELEASES, commands, environment, features, page, results, suite, trial
from versions.results import FAILED, REFUSED, YES, Outcome

from paddle_fused.command_line import UserError

pytestmark = pytest.mark.sampled

ABOUT = {"commit": "abc1234", "python": "3.10.13", "run": "full"}


def complete(folder, release, loss):
    """The results of a release on which everything works."""
    known = results.Results(folder, release)
    known.add({name: Outcome(YES, "seen") for name in features.FEATURES}, **ABOUT)
    known.add_loss(200, loss, ABOUT["python"], ABOUT["commit"])
    return known


def rows(text):
    """{first cell: the others} of all tables of a page."""
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first.strip(): [cell.strip() for cell in others] for first, *others in cells}


def test_the_page_is_that_of_the_results():
    """What is published is what the script writes; `run_versions.py --only_page` writes it again."""
    assert run_versions.PAGE.read_text() == page.page(results.read(run_versions.RESULTS, RELEASES))


def test_a_later_attempt_replaces_an_earlier_one_of_the_same_feature_only(tmp_path):
    first = results.Results(tmp_path, "3.0.0")
    first.add({"pipeline": Outcome(FAILED, "exit code 1"), "profiler": Outcome(YES, "a report")}, **ABOUT)
    first.add_loss(20, 6.5, "3.10.13", "abc1234")
    again = results.Results(tmp_path, "3.0.0")
    again.add({"pipeline": Outcome(YES, "loss 9 to 8")}, **ABOUT)
    again.add_loss(200, 3.25, "3.10.13", "abc1234")
    read = results.Results(tmp_path, "3.0.0")
    assert read.outcome("pipeline") == Outcome(YES, "loss 9 to 8")
    assert read.outcome("profiler") == Outcome(YES, "a report")
    assert read.outcome("dry run") is None
    assert {steps: found["loss"] for steps, found in read.losses.items()} == {"20": 6.5, "200": 3.25}
    assert [path.name for path in tmp_path.iterdir()] == ["3.0.0.json"]


def test_cells_losses_and_what_is_missing(tmp_path):
    complete(tmp_path, "3.3.1", 3.25)
    known = complete(tmp_path, "3.0.0", 3.5)
    known.add({"pipeline": Outcome(REFUSED, "a | b needs Paddle 3.1")}, **ABOUT)
    other = complete(tmp_path, "3.1.1", 3.5)
    other.add_loss(200, 3.5, "3.11.7", "abc1234")
    read = results.read(tmp_path, RELEASES)
    found = rows(page.page(read))
    assert found["pipeline"] == [
        "no: a \\| b needs Paddle 3.1",
        "yes (seen)",
        "not run",
        "not run",
        "yes (seen)",
    ]
    assert found["after 200 steps"] == [
        "3.5000 (+0.2500)",
        "3.5000 (text of Python 3.11.7, not of 3.10.13)",
        "not run",
        "not run",
        "3.2500",
    ]
    assert found["commit"] == ["abc1234", "abc1234", "not run", "not run", "abc1234"]
    assert page.missing(read) == {name: list(features.FEATURES) for name in ("3.2.2", "3.3.0")}


@pytest.mark.parametrize(("known", "status"), [((), 3), (RELEASES, 0)])
def test_a_page_with_gaps_is_said_and_ends_with_3(tmp_path, capsys, known, status):
    for release in known:
        complete(tmp_path / "results", release, 3.25)
    given = ["--only_page", "--results", str(tmp_path / "results"), "--page", str(tmp_path / "page.md")]
    assert run_versions.main(given) == status
    assert ("3.2.2: not run: everything" in capsys.readouterr().out) == (status == 3)
    assert ("not run" in (tmp_path / "page.md").read_text()) == (status == 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["3.4.0"], "3.4.0 is not one of 3.0.0,"),
        (["--only", "shards*"], "no feature matches 'shards*'; they are: install keeps Paddle;"),
        (["--environment", "here"], "--environment needs a single release: name it"),
        (["--steps", "10"], "--steps is 10, but must be 20 or more"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        run_versions.main(arguments)


def test_every_feature_is_found_out_by_one_attempt():
    attempted = [features.INSTALL, *(name for attempt in features.ATTEMPTS for name in attempt.names)]
    assert sorted(attempted) == sorted(features.FEATURES)


def test_files_of_the_groups():
    """Each group has files, and its sample is of them; none is named that is not there."""
    names = {path.name for path in TESTS.rglob("test_*.py")}
    for group in suite.GROUPS.values():
        assert set(group.sample) <= set(group.files(names, quick=False))
        assert set(group.without) <= names


@pytest.mark.parametrize(
    ("code", "text", "outcome"),
    [
        (0, "done", None),
        (2, "banner\nerror: it needs Paddle 3.1.\n", Outcome(REFUSED, "it needs Paddle 3.1.")),
        (2, "Traceback\nValueError: no\n", Outcome(FAILED, "exit code 2: ValueError: no")),
        (-signal.SIGSEGV, "", Outcome(FAILED, "killed by SIGSEGV: ")),
        (None, "step 3\n\n", Outcome(FAILED, "its time was over: step 3")),
    ],
)
def test_how_a_command_ended(code, text, outcome):
    assert trial.not_done(commands.Ended(code, text)) == outcome


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ({1: 9.01, 2: 8.01}, YES),
        ({1: 9.0, 2: 8.1}, FAILED),  # further from the other than bfloat16 resolves
        ({1: 9.0, 2: 9.0}, FAILED),
        ({1: 9.0}, FAILED),
    ],
)
def test_losses_that_follow_others(losses, state):
    assert trial.matches_single_process(losses, {1: 9.0, 2: 8.0}).state == state


FREEZE = "numpy==2.2.6\npaddlepaddle=={}\npaddle-ascend-llm==0.1.0\nllm @ file:///a==b\n"


def test_an_installation_that_replaces_paddle():
    before, after = (environment.frozen(FREEZE.format(version)) for version in ("3.0.0", "3.3.1"))
    assert before == {"numpy": "2.2.6", "paddlepaddle": "3.0.0"}
    assert environment.kept(before, after) == Outcome(FAILED, "paddlepaddle 3.0.0 became 3.3.1")
    assert environment.kept(before, {**before, "rich": "14"}).state == YES
    assert environment.kept(before, {"paddlepaddle": "3.0.0"}) == Outcome(YES, "numpy 2.2.6 became none")


WRITTEN = {
    "test_a.py": "def test_fails():\n    assert 1 == 2\n\ndef test_passes():\n    pass\n",
    "test_b.py": "import os\n\ndef test_passes():\n    pass\n\ndef test_ends():\n    os._exit(7)\n",
    "test_c.py": "import no_such_module\n",
    "test_e.py": "import os\n\nos._exit(8)\n",
    "test_d.py": """
        import pytest
        def test_skips():
            pytest.skip("on purpose")
        def test_passes():
            pass
        """,
}


@pytest.mark.slow
def test_a_crash_is_one_failure_and_the_files_behind_it_run(tmp_path):
    (tmp_path / "tests").mkdir()
    for name, text in WRITTEN.items():
        (tmp_path / "tests" / name).write_text(textwrap.dedent(text))
    this = environment.Environment(tmp_path, tmp_path / "logs")
    this.python = sys.executable
    tests = suite._run_files(this, tmp_path, [tmp_path / "tests" / name for name in sorted(WRITTEN)])
    assert {test.removeprefix("tests/"): outcome for test, (outcome, _) in tests.items()} == {
        "test_a.py::test_fails": "failed",
        "test_a.py::test_passes": "passed",
        "test_b.py::test_passes": "passed",
        "test_b.py::test_ends": "failed",
        "test_c.py": "failed",
        "test_d.py::test_skips": "skipped",
        "test_d.py::test_passes": "passed",
        "test_e.py": "failed",
    }
    assert "exit code 7" in tests["tests/test_b.py::test_ends"][1]
    assert "no_such_module" in tests["tests/test_c.py"][1]
    assert suite.Suite(tests).outcome({"test_d.py"}) == Outcome(YES, "1 passed, 1 skipped")
    assert suite.Suite(tests).outcome().words.startswith("4 failed, 3 passed, 1 skipped; ")


@pytest.mark.slow
def test_a_command_that_hangs_ends_with_all_that_it_started(tmp_path, monkeypatch):
    """It writes to the watched file, then sleeps; a pipe is closed when the last that holds it has ended."""
    monkeypatch.setattr(commands, "POLL", 0.1)
    watched, pipe = tmp_path / "record", tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = ["sh", "-c", 'exec 3> "$0"; echo begun > "$1"; sleep 1000 & wait', str(pipe), str(watched)]
    done = commands.run(command, tmp_path / "log", limit=4, watched=watched)
    assert done.code is None
    closed = select.poll()
    closed.register(end, select.POLLHUP)
    assert closed.poll(60_000) == [(end, select.POLLHUP)]
    os.close(end)


def test_results_are_readable_json(tmp_path):
    known = complete(tmp_path, "3.0.0", 3.5)
    content = json.loads(known.file.read_text())
    assert content["release"] == "3.0.0"
    assert content["features"]["pipeline"] == {"state": YES, "words": "seen", **ABOUT}
