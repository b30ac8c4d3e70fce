"""The acceptance of a card: journal, processes, page, summary, and the branches that only a card takes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_npu import device
from llm_npu.acceptance import command, journal, operators, process, programs, reference, training
from llm_npu.acceptance.checks import BY_NAME, CHECKS, Job
from llm_npu.acceptance.journal import DIFFERS, LOST, NOTE, SAME, Journal, Outcome
from llm_npu.acceptance.result import JSON, PAGE, Finished, Result
from llm_npu.acceptance.scrub import Scrubber
from llm_npu.core import stopping
from llm_npu.device import Device, VisibleCards
from paddle_fused import parity
from paddle_fused.parity import Accuracy


def verdicts(folder: Path) -> dict[str, str]:
    return {outcome.case: outcome.verdict for outcome in journal.read(folder)}


def test_a_journal_survives_a_crash(tmp_path):
    written = Journal(tmp_path)
    with written.case("one"):
        written.judge("one", 2 > 1, "right")
    with written.case("two"):
        raise ValueError("no such kernel")
    written.begin("three")
    with next(tmp_path.glob("journal.*")).open("a") as file:
        file.write('{"case": "thr')  # it was killed here
    assert journal.mark_lost(tmp_path, "was ended by SIGSEGV") == 1
    assert verdicts(tmp_path) == {"one": SAME, "two": DIFFERS, "three": LOST}
    assert "no such kernel" in journal.read(tmp_path)[1].message
    assert "SIGSEGV" in journal.read(tmp_path)[2].message
    assert journal.started_cases(tmp_path) == {"one", "two", "three"} and journal.lost_cases(tmp_path) == {
        "three"
    }
    assert journal.mark_lost(tmp_path, "was ended by SIGSEGV") == 0


def test_equal_outcomes_of_ranks_are_merged(tmp_path):
    for rank in range(3):
        Journal(tmp_path, rank).same("sum", "exact")
        Journal(tmp_path, rank).judge("max", rank != 1, "exact" if rank != 1 else "4 wrong", "[1]", "[2]")
    outcomes = journal.read(tmp_path)
    assert [(outcome.case, outcome.verdict) for outcome in outcomes] == [
        ("sum", SAME),
        ("max", SAME),
        ("max", DIFFERS),
    ]
    assert outcomes[-1].message == "rank 1: 4 wrong" and outcomes[-1].actual == "[2]"


@pytest.fixture
def started(tmp_path):
    """A function that runs a program as a check is run, with time limits."""

    def run(code: str, seconds: float = 60.0, silence: float = 0.0) -> str:
        log = tmp_path / "log.txt"
        return process.run([sys.executable, "-c", code], log, os.environ, seconds, silence, lambda: 0)

    return run


@pytest.mark.slow
def test_how_a_process_ended(started, tmp_path):
    assert started("print('done')") == ""
    assert "done" in (tmp_path / "log.txt").read_text()
    assert "exit code 3" in started("raise SystemExit(3)")
    assert "SIGSEGV" in started("import os; os.kill(os.getpid(), 11)")
    assert "1 s" in started("import signal; signal.pause()", seconds=1.0)
    assert "no progress" in started("import ctypes; ctypes.PyDLL(None).pause()", silence=1.0)


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
        assert "3 s" in started(code, seconds=3.0)
        left = [int(file.name) for file in tmp_path.iterdir() if file.name.isdecimal()]
        assert len(left) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in left)
        assert other.poll() is None  # not a descendant of the check
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
    wrong = Outcome("flash_attention bfloat16: <causal>", DIFFERS, "wrong in /home/alice/x", "0.1", "0.5")
    lost = Outcome("20 steps", LOST, "the process was ended by SIGKILL")
    return Result(
        "virtual",
        2,
        checks=[
            Finished("doctor", "The doctor", (Outcome("cann", NOTE, "none"),)),
            Finished("operators", "Operators", (Outcome("swiglu", SAME, ""), wrong), log="alice on node17"),
            Finished("training", "A training", (lost,)),
            Finished("mc2", "Products", left_out="it needs 2 cards"),
        ],
    )


def test_the_result_begins_with_what_differs(result, tmp_path):
    result.write(tmp_path, Scrubber({"USER": "alice"}, {"node17"}))
    content = json.loads((tmp_path / JSON).read_text())
    assert [check["verdict"] for check in content["checks"]] == ["same", "differs", "lost", "left out"]
    assert [(row["check"], row["verdict"]) for row in content["differences"]] == [
        ("training", "lost"),
        ("operators", "differs"),
    ]
    html = (tmp_path / PAGE).read_text()
    assert html.index("SIGKILL") < html.index("0.5") < html.index("The checks")
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
    assert training.last_error(printed).startswith(words)


def test_the_bounds_grow_with_the_roundings():
    bounds = reference.allowed([8.0, 4.0, 2.0], [[8.0, 4.5, 2.0], [8.0, 4.0, 1.75]])
    rounding = 4 * 2.0**-24 * 8.0
    assert bounds == [rounding, 1.0 + rounding, 1.0 + rounding]


def test_the_recording_has_every_case():
    from llm_npu.acceptance.operators import name_of
    from paddle_fused import paddle_release

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
    (outcome,) = journal.read(tmp_path)
    assert (outcome.case, outcome.verdict) == ("speed", verdict)


@pytest.mark.parametrize("kind", ["card", "virtual"])
def test_the_planned_run_is_one_that_the_trainer_takes(kind, tmp_path):
    from llm_npu import config

    planned = programs.planned_for(job_on(kind, tmp_path))
    assert planned.fits
    flags = {"input_dir": tmp_path, "output_dir": tmp_path / "out", "device": "npu"}
    arguments = config.read([*planned.layout.arguments(planned.shape), *training.words(flags)])
    assert arguments.values.model_name_or_path == planned.shape.name


def job_on(kind: str, folder: Path) -> Job:
    return Job("plan", folder, folder, kind, "npu", 1, "910b2")


@pytest.mark.parametrize(("cards", "ranks"), [(1, 1), (2, 2), (3, 2), (5, 4), (8, 8)])
def test_a_power_of_two_of_the_cards_is_used(cards, ranks, tmp_path):
    assert replace(job_on("card", tmp_path), cards=cards).ranks == ranks


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_the_trainer_accepts_the_run_on_several_cards(cards, tmp_path):
    """Every number of cards computes the same global batch, that of the recorded losses."""
    from llm_npu import config

    flags = {**training.inputs(tmp_path), "output_dir": tmp_path / "out", "device": "npu", "nproc": cards}
    arguments = config.read(training.words(flags | training.parallel_flags(cards)))
    rows = arguments.values.per_device_train_batch_size * cards // 2
    assert rows == training.ROWS
    assert bool(arguments.values.sharding) == (cards > 2)


CARD, VIRTUAL = Device("npu", "card", "planted"), Device("npu", "virtual", "planted")


@pytest.mark.parametrize(
    ("chosen", "visible", "requested", "count"),
    [(CARD, 1, None, 1), (CARD, 3, None, 3), (CARD, 16, None, 8), (CARD, 8, 2, 2), (VIRTUAL, 0, None, 2)],
)
def test_how_many_cards_are_used(chosen, visible, requested, count, monkeypatch):
    monkeypatch.setattr(device, "find_cards", lambda: VisibleCards(Path("plugin"), visible, ()))
    assert command.card_count(requested, chosen) == count


def test_more_cards_than_there_are(monkeypatch):
    monkeypatch.setattr(device, "find_cards", lambda: VisibleCards(Path("plugin"), 3, ()))
    with pytest.raises(ValueError, match="1 to 3"):
        command.card_count(4, CARD)


def accuracy(error: float) -> Accuracy:
    return Accuracy(max_error=error, allowed=0.2, ratio=error / 0.1, cosine=1.0, ulp=0.0)


@pytest.mark.parametrize(
    ("refused", "mode", "error", "recorded", "verdict"),
    [
        (None, "causal", 0.1, "causal", SAME),
        (None, "causal", 0.3, "causal", DIFFERS),
        (None, "causal", float("nan"), "causal", DIFFERS),
        (None, "dense", 0.1, "causal", DIFFERS),
        (None, "causal", 0.1, None, DIFFERS),
        ("no such kernel", "", 0.0, "causal", DIFFERS),
        ("no such kernel", "", 0.0, None, SAME),
    ],
)
def test_a_card_s_case_is_compared_with_the_record(refused, mode, error, recorded, verdict, tmp_path):
    """Results as a card gives them; an error of 0.2 is allowed."""
    tensors = {} if refused else {"output": accuracy(error)}
    result = parity.Result("flash_attention", "a", "ascend", mode, "npu", "bfloat16", refused, tensors)
    plain = replace(result, refused=None, tensors={"output": accuracy(0.1)})
    operators.judge(Journal(tmp_path), "a", result, plain, {"mode": recorded, "bounds": {"output": 0.2}})
    assert verdicts(tmp_path) == {"a": verdict}


@pytest.mark.parametrize("error", [0.3, float("nan")])
def test_plain_paddle_may_be_wrong_on_a_card(error, tmp_path):
    result = parity.Result("swiglu", "a", "ascend", "", "npu", "float32", None, {"output": accuracy(0.0)})
    plain = replace(result, tensors={"output": accuracy(error)})
    operators.judge(Journal(tmp_path), "a", result, plain, {"mode": "", "bounds": {"output": 0.2}})
    assert verdicts(tmp_path) == {"a": SAME, "a, plain": DIFFERS}


@pytest.mark.slow
def test_the_page_of_a_planted_card(tmp_path, monkeypatch):
    """The host has no card: the doctor, a process of its own, reports that; the page is that of cards."""
    monkeypatch.setattr(device, "find_cards", lambda: VisibleCards(Path("plugin"), 16, ()))
    monkeypatch.setattr(device, "select", lambda name: CARD)
    monkeypatch.setattr(stopping, "subscribe", lambda handler: None)
    arguments = ["--only", "doctor", "two_cards", "--device", "npu:card", "--cards", "1"]
    assert command.main([*arguments, "--output_dir", str(tmp_path / "found")]) == 1
    content = json.loads((tmp_path / "found" / JSON).read_text())
    assert (content["device"], content["cards"]) == ("card", 1)
    assert {check["name"]: check["verdict"] for check in content["checks"]} == {
        "doctor": "differs",
        "two_cards": "left out",
    }
    assert all(row["case"].startswith("doctor: ") for row in content["differences"])
    html = (tmp_path / "found" / PAGE).read_text()
    assert "This ran on Ascend cards" in html and "virtual NPU on a host" not in html


def test_the_checks_fit_into_the_time():
    assert len(BY_NAME) == len(CHECKS)
    assert all(check.seconds <= 20 * 60 for check in CHECKS)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cards", "9"], "1 to 8"),
        (["--cards", "0"], "1 to 8"),
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
