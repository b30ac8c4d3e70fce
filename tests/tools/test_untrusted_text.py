"""Text of files on terminals and pages: printable, never markup, from every tool that shows it."""

import gzip
import json
import os
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_npu.acceptance import command, journal
from llm_npu.acceptance.checks import CHECKS
from llm_npu.acceptance.journal import DIFFERS, Journal, Outcome
from llm_npu.acceptance.result import JSON, PAGE, Finished, Result
from llm_npu.acceptance.scrub import Scrubber
from llm_npu.commands import doctor
from llm_npu.core import program, refusal
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from llm_npu.doctor.explain import catalogue, explain_text
from llm_npu.doctor.explain.reading import PIECE
from llm_npu.launch import supervisor
from llm_npu.numerics import __main__ as numerics
from llm_npu.numerics import options
from llm_npu.training.dry_run import journal as dry_run_journal

NASTY = "\x1b]0;title\x07\x1b[31m<script>alert(1)</script>|$x_1$\u202e\x9b2J\r\x00"
MARKUP = ("<script", "<img")


def is_printable(text: str) -> bool:
    return all(character.isprintable() or character in LAYOUT for character in text)


@given(st.text())
def test_printable_text_is_printable_and_says_the_same(text):
    shown = printable(text)
    assert all(c.isprintable() or c in "\u3000\xa0" or (c.isspace() and not c < "\xa0") for c in shown)
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


def test_layout_and_length():
    assert printable("a\tb\n\x1b", keep=LAYOUT) == "a\tb\n\\x1b"
    assert printable("矩阵\u3000乘 é") == "矩阵\u3000乘 é"
    assert printable("x" * 10_000, longest=5) == "xxxxx... (10,000 characters)"
    assert printable("\ud800\n") == "\\ud800\\n"


def test_a_refusal_is_printable(capsys):
    refusal.say(f"the file says {NASTY}\nand more")
    printed = capsys.readouterr().err
    assert is_printable(printed) and printed.endswith("\nand more\n")


def test_the_end_of_a_ranks_log_is_printable_and_short(tmp_path):
    log = tmp_path / "workerlog.1"
    log.write_text("x" * 100_000 + NASTY)
    end = supervisor._tail(log)
    assert is_printable(end) and len(end) < 2 * supervisor.LOG_TAIL and "<script>" in end


LOGS = {
    "escapes": b"\x1b[31m\x9b2J E39999 Inner Error \x1b]0;x\x07\r\n" * 50,
    "UTF-16": "RuntimeError: EI0006 Getting socket times out\n".encode("utf-16"),
    "binary": bytes(range(256)) * 5000,
    "one line": b"error E39999 " * 100_000,
    "nothing": b"",
}


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_odd_logs(tmp_path, capsys, kind, as_json):
    file = tmp_path / "run.log"
    file.write_bytes(LOGS[kind])
    code = doctor.main(["--explain", str(file), *as_json])
    printed = capsys.readouterr()
    assert is_printable(printed.out) and printed.out and printed.err == ""
    assert code == (kind == "UTF-16")
    if as_json:
        json.loads(printed.out)


def test_a_compressed_log_is_refused_with_the_way_to_read_it(tmp_path, capsys):
    (tmp_path / "run.log.gz").write_bytes(gzip.compress(b"EI0006"))
    assert program.run(doctor.main, ["--explain", str(tmp_path / "run.log.gz")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "is compressed" in printed.err and "gzip -dc" in printed.err


def test_no_line_of_a_log_takes_long():
    """Some patterns took seconds for 8 KiB: their time grew with the third power of the length."""
    began = time.process_time()
    for text, _ in catalogue.catalogue().texts:
        if text.match:
            for filler in ("a", "1.", " "):
                text.fits((text.has + filler * 4) * (PIECE // (len(text.has) + 4)))
                text.fits(text.has + filler * PIECE)
    explain_text("rt" * 100_000 + " reason=")
    assert time.process_time() - began < 20  # half a second is usual


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"a.*b", "a.{0,512}b"),
        (r"[\w.+-]+\.so\*", r"[\w.+-]{1,512}\.so\*"),
        (r"\S*?x|[*]", r"\S{0,512}?x|[*]"),
    ],
)
def test_patterns_have_a_limit(pattern, expected):
    assert catalogue.bounded(pattern) == expected


def test_a_rank_table_with_escapes(tmp_path, capsys):
    server = {"server_id": NASTY, "device": [{"device_id": NASTY, "device_ip": "<img>", "rank_id": NASTY}]}
    table = {"version": NASTY, "server_count": "1", "status": "completed", "server_list": [server]}
    (tmp_path / "table.json").write_text(json.dumps(table))
    assert program.run(doctor.main, ["--rank_table", str(tmp_path / "table.json")]) in (1, 2)
    printed = capsys.readouterr()
    assert is_printable(printed.out + printed.err)


def test_names_in_dumps(tmp_path, capsys):
    arrays = {f"output/{NASTY}": np.ones(3, np.float32), NASTY: np.ones(2, np.float32), "\nok": np.ones(1)}
    options.write(arrays, tmp_path / "one" / "step-\u00b2")
    options.write({name: 2 * array for name, array in arrays.items()}, tmp_path / "other" / "step-\u00b2")
    assert program.run(numerics.main, ["compare", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    printed = capsys.readouterr()
    assert is_printable(printed.out) and printed.err == "" and "\\nok" in printed.out


def test_dumps_of_other_dtypes_are_refused(tmp_path, capsys):
    for name in ("one", "other"):
        options.write({"output/a": np.arange(3)}, tmp_path / name)
    assert program.run(numerics.main, ["compare", str(tmp_path / "one"), str(tmp_path / "other")]) == 2
    assert "int64" in capsys.readouterr().err


def test_large_numbers_are_compared():
    """Their squares are beyond float64: every distance would be infinite, and so would what is allowed."""
    from llm_npu.numerics.comparison import compare

    first, other = {"output/a": np.full(3, 1e200)}, {"output/a": np.full(3, 1.1e200)}
    assert compare(first, other, [{"output/a": np.full(3, 1.1e200)}]).beyond_rounding
    assert not compare(first, other, [{"output/a": np.full(3, 2e200)}]).beyond_rounding


def test_the_page_of_an_acceptance_has_no_markup_of_others(tmp_path, capsys):
    outcome = Outcome(NASTY, DIFFERS, NASTY, NASTY, NASTY)
    checks = [Finished("operators", "Operators", (outcome,), text=NASTY + "\n\tmore", log=NASTY)]
    result = Result("virtual", 1, checks=checks)
    result.write(tmp_path, Scrubber({}, set()))
    assert command._print_summary(result, tmp_path) == 1
    page = (tmp_path / PAGE).read_text()
    assert not any(mark in page for mark in MARKUP) and "&lt;script&gt;" in page and "\n\tmore" in page
    assert is_printable(page) and is_printable(capsys.readouterr().out)
    json.loads((tmp_path / JSON).read_text())


def test_odd_lines_of_an_acceptance_journal(tmp_path):
    """What another program, or half a line, has left there."""
    written = Journal(tmp_path)
    written.same("one", "as recorded")
    file = tmp_path / "journal.0.jsonl"
    odd = [
        {"case": "x"},
        {"case": [], "verdict": "same", "message": ""},
        {"case": "x", "verdict": "?", "message": ""},
    ]
    odd += [[], 5, None, {"case": "x", "verdict": "same", "message": "", "more": "y"}, {"begin": 5}]
    text = "\n".join([*map(json.dumps, odd), "[" * 100_000, '{"case": "x'])
    file.write_text(file.read_text() + text + "\n")
    (tmp_path / "journal.x.jsonl").write_text("")
    written.differs("two", "something")
    assert [outcome.case for outcome in journal.read(tmp_path)] == ["one", "two"]
    assert journal.started_cases(tmp_path) == set() and CHECKS


SHAPES = st.lists(st.integers(-1, 5) | st.integers(0, 2**63), max_size=4)
NAMES = ["matmul", "bmm_grad", "flash_attention_npu", "pf_linear_cross_entropy", "fused_allgather_mm", "add"]
CALL = st.fixed_dictionaries(
    {
        "event": st.just("operator"),
        "name": st.sampled_from(NAMES) | st.text(),
        "dtype": st.text(max_size=3),
        "placement": st.sampled_from(["npu", "host"]),
        "inputs": st.lists(st.tuples(st.just("float32"), SHAPES), max_size=3),
        "outputs": st.lists(st.tuples(st.just("float32"), SHAPES), max_size=3),
        "allocated": st.integers(-2, 2**65),
    }
)
EVENT = CALL | st.dictionaries(st.sampled_from(["event", "text", "id", "bytes"]), st.text() | st.integers())


@given(st.lists(EVENT, max_size=4), st.data())
def test_any_journal_is_read_or_refused(tmp_path_factory, events, data):
    file = tmp_path_factory.mktemp("journal") / "step.jsonl"
    lines = [json.dumps({"event": "mark", "text": "step begins"}), *map(json.dumps, events)]
    cut = data.draw(st.integers(0, len(lines[-1])))
    file.write_text("\n".join(lines)[: -cut or None])
    try:
        read_journal = dry_run_journal.read(file)
    except UserError as error:
        assert "is not a journal line" in str(error) and is_printable(str(error))
        return
    for call in read_journal.steps[0].calls if read_journal.steps else ():
        assert isinstance(call.bytes, int) and isinstance(call.flops, int) and call.kind


def test_a_journal_of_one_endless_line(tmp_path):
    (tmp_path / "step.jsonl").touch()
    os.truncate(tmp_path / "step.jsonl", 1 << 33)  # 8 GiB of zeros, none on the disk
    with pytest.raises(UserError, match="line 1, is not a journal line"):
        dry_run_journal.read(tmp_path / "step.jsonl")
