"""The exit codes in the documentation are those that the program has."""

import re
import signal

import pytest
from places import ROOT
from test_launch import WAITS, Ranks

from llm_npu.launch import heartbeat, supervisor

pytestmark = pytest.mark.sampled

PROGRAM = """
import signal, sys
from llm_npu.core import program, stopping
from llm_npu.core.errors import UserError

stopping.listen("")
stopping.unshield()

def main(argv):
    {}
    return 0

sys.exit(program.run(main, []))
"""
LINES = {
    0: "pass",
    1: "raise ValueError('a fault')",
    2: "raise UserError('bad input')",
    129: "signal.raise_signal(signal.SIGHUP)",
    130: "signal.raise_signal(signal.SIGINT)",
    143: "signal.raise_signal(signal.SIGTERM)",
}
LOST_MACHINE = heartbeat.EXIT_LOST  # tests/cluster/test_heartbeat.py
ENDS = {137: signal.SIGKILL, 147: signal.SIGSTOP}


@pytest.mark.parametrize("page", ["exit_codes.md", "exit_codes.zh-CN.md"])
def test_the_page_has_them_all(page):
    parts = (ROOT / "docs/reference" / page).read_text(encoding="utf-8").split("\n\n")
    (table,) = (part for part in parts if "| `147` |" in part)
    first_cells = re.findall(r"^\| (`\d+`(?:, `\d+`)*) \|", table, re.MULTILINE)
    codes = [int(code) for cell in first_cells for code in re.findall(r"\d+", cell)]
    assert sorted(codes) == sorted([*LINES, *ENDS, LOST_MACHINE])


@pytest.mark.parametrize("code", LINES)
def test_of_one_process(run_python, code):
    done = run_python("-c", PROGRAM.format(LINES[code]))
    assert done.returncode == code
    assert ("Traceback" in done.stderr) == (code == 1)


@pytest.mark.parametrize("code", ENDS)
def test_of_a_lost_rank(tmp_path, monkeypatch, code):
    monkeypatch.setattr(supervisor, "STOPPED_LIMIT", 0.2)
    started = Ranks(tmp_path, WAITS, WAITS)
    started.processes[1].send_signal(ENDS[code])
    assert started.watch() == code
