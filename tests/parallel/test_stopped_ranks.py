"""A rank that stops in the middle of an exchange, but does not exit, is named on all other ranks."""

import re
from pathlib import Path

import pytest
import ranks
from stopped_ranks.program import METHODS, STOPPED

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "stopped_ranks" / "program.py"
TIMEOUT = 10  # seconds until a rank that does not reach a collective is reported


@pytest.mark.parametrize("of_pass", ["forward", "backward"])
@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_rank_is_named_within_the_timeout(method, of_pass, tmp_path):
    variables = {"VIRTUAL_NPU_COLLECTIVE_TIMEOUT": str(TIMEOUT)}
    reports = ranks.run(PROGRAM, 4, tmp_path, method, of_pass, may_die=(STOPPED,), **variables)
    assert reports.pop(STOPPED) is None
    for report in reports:
        # its number in the group, and, where that is another one, in the run
        named = re.search(
            r"for rank (\d) \((?:trainer (\d), )?process \d+\), which is stopped", report["error"]
        )
        assert named and int(named[2] or named[1]) == STOPPED, report["error"]
        assert report["seconds"] < TIMEOUT
