"""Every planted bug of the corpus is found at its line, and no corrected program is reported."""

import pytest

from benchmarks import checks
from benchmarks.checks import Program, Result, table
from paddle_fused import command_line

PROGRAMS = checks.programs()
NUMBERS = {"race": 10, "init": 8, "memory": 7, "sync": 5}  # at least


@pytest.mark.parametrize("check", NUMBERS)
def test_corpus_is_complete(check):
    programs = [program for program in PROGRAMS if program.check == check]
    assert len(programs) >= NUMBERS[check]
    for program in programs:
        source = program.file.read_text()
        assert source.count("# planted") == 1 and source.count("# other side") <= 1
        assert '"corrected"' in source and program.file.read_text().startswith('"""')


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.check}-{program.name}")
def test_planted_bug_is_found(program):
    result = checks.run(program)
    assert result.is_found, result.output[-3000:]
    assert not result.false_alarm


def test_table_counts_bugs_and_false_alarms():
    file = checks.CORPUS / "init" / "loss_accumulator.py"
    text = table([Result(Program(file), True, "", ""), Result(Program(file), False, "reported", "")]).text()
    assert text.splitlines()[-1] == "1 of 2 found, 1 false alarms"


@pytest.mark.parametrize("words", [["--check", "races"], ["--program", "nothing"]])
def test_unknown_names_are_refused(words, capsys):
    assert command_line.run(checks.main, words) == 2
    assert "accepted: " in capsys.readouterr().err
