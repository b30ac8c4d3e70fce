"""What the acceptance of a card writes, whatever a piece does, and that it names nobody."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_npu.acceptance import command, journal, process, programs, reference, trained
from llm_npu.acceptance.journal import DIFFERS, LOST, NOTE, SAME, Check, Journal
from llm_npu.acceptance.pieces import BY_NAME, PIECES, Job
from llm_npu.acceptance.result import JSON, PAGE, Finished, Result
from llm_npu.acceptance.scrub import Scrubber


def verdicts(folder: Path) -> dict[str, str]:
    return {check.name: check.verdict for check in journal.read(folder)}


def test_a_journal_keeps_what_was_said_before_the_end(tmp_path):
    written = Journal(tmp_path)
    with written.check("one"):
        written.judge("one", 2 > 1, "right")
    with written.check("two"):
        raise ValueError("no such kernel")
    written.begins("three")
    with next(tmp_path.glob("journal.*")).open("a") as file:
        file.write('{"check": "thr')  # it was killed here
    assert journal.lose(tmp_path, "was ended by SIGSEGV") == 1
    assert verdicts(tmp_path) == {"one": SAME, "two": DIFFERS, "three": LOST}
    assert "no such kernel" in journal.read(tmp_path)[1].what
    assert "SIGSEGV" in journal.read(tmp_path)[2].what
    assert journal.begun(tmp_path) == {"one", "two", "three"} and journal.lost(tmp_path) == {"three"}
    assert journal.lose(tmp_path, "was ended by SIGSEGV") == 0


def test_ranks_that_say_the_same_are_read_once(tmp_path):
    for rank in range(3):
        Journal(tmp_path, rank).same("sum", "exact")
        Journal(tmp_path, rank).judge("max", rank != 1, "exact" if rank != 1 else "4 wrong", "[1]", "[2]")
    found = journal.read(tmp_path)
    assert [(each.name, each.verdict) for each in found] == [("sum", SAME), ("max", SAME), ("max", DIFFERS)]
    assert found[-1].what == "rank 1: 4 wrong" and found[-1].found == "[2]"


@pytest.fixture
def started(tmp_path):
    """A function that runs a program as a piece is run, with limits of time."""

    def run(code: str, seconds: float = 60.0, silence: float = 0.0) -> process.End:
        log = tmp_path / "log.txt"
        return process.run([sys.executable, "-c", code], log, os.environ, seconds, silence, lambda: 0)

    return run


@pytest.mark.slow
def test_how_a_process_ended(started, tmp_path):
    assert started("print('done')").how == ""
    assert "done" in (tmp_path / "log.txt").read_text()
    assert "exit code 3" in started("raise SystemExit(3)").how
    assert "SIGSEGV" in started("import os; os.kill(os.getpid(), 11)").how
    end = started("import signal; signal.pause()", seconds=1.0)
    assert end.is_hung and "1 s" in end.how
    end = started("import ctypes; ctypes.PyDLL(None).pause()", silence=1.0)
    assert end.is_hung and "no progress" in end.how


@pytest.mark.slow
def test_nothing_is_left_of_a_process(started, tmp_path):
    """Not even what it has put into another session, and what has lost its parent."""
    code = f"""
import signal, subprocess, sys
nap = "import pathlib, os, signal; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); signal.pause()"
two = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", nap], start_new_session=True)
subprocess.run([sys.executable, "-c", two, nap])
signal.pause()
"""
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        assert started(code, seconds=3.0).is_hung
        left = [int(file.name) for file in tmp_path.iterdir() if file.name.isdecimal()]
        assert len(left) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in left)
        assert other.poll() is None  # it is nobody's piece
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/alice/secret_project/run", "<path>"),
        ("in /home/alice/x/train.py, line 3", "in <path>/train.py, line 3"),
        ("file:///data/bob/a.json", "<path>/a.json"),
        ("see ~alice/models or ~/models", "see <path> or <path>"),
        ("alice@node17.cluster.example wrote", "<address> wrote"),
        ("node17: rank 1 of alice", "<host>: rank 1 of <user>"),
        ("NODE17_log, alice_tmp", "<host>_log, <user>_tmp"),
        ("bound to 192.168.3.17:8000 and 172.16.0.9", "bound to <address>:8000 and <address>"),
        ("fe80::1ff:fe23:4567:890a is up", "<address> is up"),
        ("aa:bb:cc:dd:ee:0f", "<address>"),
        ("driver 24.1.0.3, CANN version=8.0.0.1", "driver 24.1.0.3, CANN version=8.0.0.1"),
        ("took 17:01:38 in paddle::Tensor, and/or a / b", "took 17:01:38 in paddle::Tensor, and/or a / b"),
        ("1.5e-03 of 3.2.1, malice", "1.5e-03 of 3.2.1, malice"),
    ],
)
def test_no_names(text, clean):
    environ = {"USER": "alice", "LOGNAME": "root"}
    assert Scrubber(environ, {"node17", "node17.cluster.example"}).text(text) == clean


@pytest.fixture
def result():
    wrong = Check("flash_attention bfloat16: <causal>", DIFFERS, "wrong in /home/alice/x", "0.1", "0.5")
    lost = Check("20 steps", LOST, "the process was ended by SIGKILL")
    return Result(
        "virtual",
        2,
        pieces=[
            Finished("doctor", "The doctor", (Check("cann", NOTE, "none"),)),
            Finished("operators", "Operators", (Check("swiglu", SAME, ""), wrong), log="alice on node17"),
            Finished("training", "A training", (lost,)),
            Finished("mc2", "Products", left_out="it needs 2 cards"),
        ],
    )


def test_the_result_begins_with_what_differs(result, tmp_path):
    result.write(tmp_path, Scrubber({"USER": "alice"}, {"node17"}))
    found = json.loads((tmp_path / JSON).read_text())
    assert [each["verdict"] for each in found["pieces"]] == ["same", "differs", "lost", "left out"]
    assert [(each["piece"], each["verdict"]) for each in found["differences"]] == [
        ("training", "lost"),
        ("operators", "differs"),
    ]
    html = (tmp_path / PAGE).read_text()
    assert html.index("SIGKILL") < html.index("0.5") < html.index("The pieces")
    assert "&lt;causal&gt;" in html and "<causal>" not in html
    for text in (html, (tmp_path / JSON).read_text()):
        assert "alice" not in text and "node17" not in text and "/home" not in text
    for outside in ("http:", "https:", "src=", "@import"):
        assert outside not in html


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("step 1\nOSError: a.so: undefined symbol: f\nrun      pip list", "OSError: a.so"),
        ("error: --nproc is 9.\n", "error: --nproc is 9."),
        ("ValueError: a\nPreconditionNotMet\nExternalError: ACL 507011\n[Hint]\nmore", "ExternalError: ACL"),
        ("one\n\ntwo\n", "one two"),
    ],
)
def test_a_failed_run_is_quoted_with_its_error(printed, words):
    assert trained.last_error(printed).startswith(words)


def test_the_bounds_grow_with_the_roundings():
    bounds = reference.allowed([8.0, 4.0, 2.0], [[8.0, 4.5, 2.0], [8.0, 4.0, 1.75]])
    rounding = 4 * 2.0**-24 * 8.0
    assert bounds == [rounding, 1.0 + rounding, 1.0 + rounding]


def test_the_recording_has_every_case():
    from llm_npu.acceptance.operators import name_of
    from paddle_fused import paddle_release, parity

    known = reference.read()
    names = {name_of(case, dtype) for case, dtype in parity.all_pairs()}
    if paddle_release.min_tokens() == 0:  # as in the release that was recorded
        assert set(known["operators"]) == names
    for quantity in reference.QUANTITIES:
        recorded, others = (known["training"][quantity][name] for name in ("recorded", "others"))
        assert len(recorded) == 20 and {len(other) for other in others} == {20}
    assert known["training"]["loss"]["recorded"][-1] < known["training"]["loss"]["recorded"][0]


@pytest.mark.parametrize(
    ("kind", "share", "verdict"),
    [
        ("card", 1.0, SAME),
        ("card", 1.4, SAME),
        ("card", 0.6, SAME),
        ("card", 1.5, DIFFERS),
        ("card", 0.5, DIFFERS),
        ("virtual", 0.01, NOTE),
    ],
)
def test_a_card_s_speed_is_compared_with_the_planner_s_range(kind, share, verdict, tmp_path):
    """Records as a card writes them; the range of a single card's speed is 46 %."""
    planned = programs.planned_for(job := job_on(kind, tmp_path))
    speed = planned.time.tokens_per_second_per_card * share
    records = [{"tokens_per_s": value} for value in [1.0] * programs.WARM + [speed] * 5]
    programs.compare_speed(job, Journal(tmp_path), records, planned)
    (check,) = journal.read(tmp_path)
    assert (check.name, check.verdict) == ("speed", verdict)


@pytest.mark.parametrize("kind", ["card", "virtual"])
def test_the_planned_run_is_one_that_the_trainer_takes(kind, tmp_path):
    from llm_npu import config

    planned = programs.planned_for(job_on(kind, tmp_path))
    assert planned.fits
    given = {"input_dir": tmp_path, "output_dir": tmp_path / "out", "device": "npu"}
    arguments = config.read([*planned.layout.arguments(planned.shape), *trained.words(given)])
    assert arguments.values.model_name_or_path == planned.shape.name


def job_on(kind: str, folder: Path) -> Job:
    return Job("plan", folder, folder, kind, "npu", 1, "910b2")


def test_the_pieces_fit_into_the_time():
    assert len(BY_NAME) == len(PIECES)
    assert all(piece.seconds <= 20 * 60 for piece in PIECES)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cards", "9"], "give 1 to 8"),
        (["--cards", "0"], "give 1 to 8"),
        (["--minutes", "0"], "--minutes"),
        (["--card", "910b9"], "--card"),
        (["--device", "cpu"], "--device"),
        (["--device", "npu:1"], "--device"),
        (["--output_dir", "full"], "not an empty folder"),
    ],
)
def test_bad_arguments(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match=words):
        command.main(["--only", "doctor", *arguments])
