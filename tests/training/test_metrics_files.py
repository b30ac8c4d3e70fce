"""metrics.jsonl as others leave it: what is a record counts, what is none is counted, nothing fails."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_npu.console import results
from llm_npu.core import console
from llm_npu.training import metrics
from llm_npu.training.metrics import NUMBERS, Recorder

STEP = {"step": 1, "loss": 2.5, "learning_rate": 1e-3, "grad_norm": 1.0, "tokens_per_s": 100.0, "step_s": 2.0}
STEP |= {"data_s": 0.5, "peak_memory": 1 << 20}
RECORDS = [STEP, {"step": 2, "eval_loss": 2.0}, {"step": 2, "checkpoint_s": 1.0, "stall_s": 0.5}]


def resumed(folder: Path, content: bytes, capsys=None) -> Recorder:
    """The recorder of a run that resumes after step 100 in a folder with this metrics.jsonl."""
    (folder / metrics.FILE).write_bytes(content)
    new_recorder = Recorder(console.Display(bar=False))
    arguments = SimpleNamespace(output_dir=folder, logging_steps=1)
    new_recorder.on_train_begin(arguments, SimpleNamespace(global_step=100, max_steps=100), None)
    return new_recorder


def used(recorder: Recorder) -> None:
    """Everything that the end of a run does with the records."""
    recorder.eval_losses(), recorder.peak_memory()
    if recorder.losses():
        recorder.recent_loss()
        assert results._speed(recorder)


def drawn(recorder: Recorder, folder: Path) -> None:
    metrics.plot_loss(recorder, metrics.Baseline(3.0, "$guess$", "ln", "nats"), folder / "loss.png")
    metrics.plot_run(recorder, folder / "metrics.png")


def lines(*records: dict) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.sampled
@pytest.mark.parametrize("lacking", [*(name for name in STEP if name != "step"), "all"])
def test_a_record_without_a_field(tmp_path, lacking):
    kept = {"step", "loss"} if lacking == "all" else STEP.keys() - {lacking}
    partial = {name: STEP[name] for name in STEP if name in kept}
    read_back = resumed(tmp_path, lines(partial, {"step": 3}))
    assert read_back.records == [partial, {"step": 3}]
    used(read_back)
    if read_back.losses():
        drawn(read_back, tmp_path)


def test_lines_that_are_no_records_are_counted_and_the_others_kept(tmp_path, capsys):
    """A line in the middle that a full disk cut off must not take the later ones with it."""
    others = [
        b'{"step": 5, "lo',
        b"[1]",
        b"null",
        b"{}",
        b'{"step": "7"}',
        b'{"step": true}',
        b'{"step": -1}',
    ]
    others += [b'{"step": 8, "loss": "low"}', b'{"step": 8, "step_s": true}', b"\xff\xfe\0", b"[" * 100_000]
    others += [b'{"step": 8, "loss": ' + b"9" * 5000 + b"}", b'{"step": 1, "a": "' + b"x" * (2 << 20) + b'"}']
    content = (
        b"\xef\xbb\xbf" + lines(STEP) + b"\n".join(others) + b"\r\n\n" + lines(*RECORDS[1:]) + b'{"step": 9'
    )
    read_back = resumed(tmp_path, content)
    assert read_back.records == RECORDS
    assert f"{len(others)} lines " in capsys.readouterr().out
    assert metrics.read(tmp_path / metrics.FILE) == RECORDS  # written anew


def test_a_line_that_a_kill_has_cut_off_is_not_worth_a_note(tmp_path, capsys):
    assert resumed(tmp_path, lines(*RECORDS) + b'{"step": 3, "lo').records == RECORDS
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("step_s", [0, 0.0, -1.0, float("nan"), float("inf"), 1e-320])
def test_steps_that_took_no_time(tmp_path, step_s):
    read_back = resumed(tmp_path, lines({**STEP, "step_s": step_s}))
    used(read_back)
    assert read_back.shares() != {"data": 0.25}


def test_what_is_no_file_has_no_records(tmp_path):
    os.mkfifo(tmp_path / metrics.FILE)
    assert metrics.read(tmp_path / metrics.FILE) == []
    assert metrics.read("/dev/zero") == metrics.read(tmp_path) == metrics.read(tmp_path / "nowhere") == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


NUMBER = st.integers(-(2**52), 2**52) | st.floats() | st.none()
ODD = st.text() | st.booleans() | st.lists(st.integers(), max_size=2) | st.just({}) | st.just(10**400)
FIELDS = st.dictionaries(st.sampled_from(NUMBERS), NUMBER, max_size=8)
GOOD = st.builds(lambda step, fields: {"step": step, **fields}, st.integers(0, 2**52), FIELDS)
BAD = st.builds(lambda record, name, odd: {**record, name: odd}, GOOD, st.sampled_from(NUMBERS), ODD)
LINE = (
    st.tuples(st.builds(lambda record: json.dumps(record).encode(), GOOD), st.just(True))
    | st.tuples(st.builds(lambda record: json.dumps(record).encode(), BAD), st.just(False))
    | st.tuples(st.binary(max_size=40).map(lambda junk: b"{" + junk.replace(b"\n", b"")), st.just(False))
)


@settings(max_examples=25)
@given(st.lists(LINE, max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_any_lines(folder, written, end):
    file = folder / metrics.FILE
    file.write_bytes(b"".join(line + end for line, _ in written))
    notes = []
    records = metrics.read(file, notes)
    expected = [json.loads(line) for line, good in written if good]
    assert repr(records) == repr(expected)
    bad = sum(not good for _, good in written)
    assert len(notes) == bool(bad) and all(f"{bad} lines" in note for note in notes)
    used(resumed(folder, file.read_bytes()))


@pytest.mark.slow
@settings(max_examples=2)
@given(st.lists(GOOD.map(lambda record: {"loss": 1.0, **record}), min_size=1, max_size=6))
def test_pictures_of_any_records(folder, records):
    read_back = resumed(folder, lines(*({**record, "step": record["step"] % 100} for record in records)))
    drawn(read_back, folder)
