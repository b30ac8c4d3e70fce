"""VIRTUAL_NPU_DEFER: a missing wait shows in the numbers; other programs compute the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

PROGRAM = Path(__file__).parent / "deferred_program.py"
OWN, SUM = (2.0, 4.0), 6.0  # twice the value of each rank, and twice the sum


def run(folder, seed):
    return ranks.run(PROGRAM, 2, folder, VIRTUAL_NPU_DEFER=seed)


@pytest.mark.slow
def test_a_missing_wait_shows_and_complete_programs_keep_their_bits(tmp_path):
    expected = run(tmp_path / "as launched", "")
    stale = 0
    for seed in ("1", "2", "3"):
        reports = run(tmp_path / seed, seed)
        stale += sum(report["without"] == own for report, own in zip(reports, OWN, strict=True))
        for report, reference in zip(reports, expected, strict=True):
            assert report["with"] == SUM
            assert report["losses"] == reference["losses"]
            assert report["error"] != ""
    assert stale > 0


def test_values_and_combinations_are_refused():
    program = "import virtual_npu; virtual_npu.activate(); import paddle; paddle.set_device('npu')"

    def error(**environment):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode != 0
        return done.stderr

    assert "a whole number from 1" in error(VIRTUAL_NPU_DEFER="0")
    assert "VIRTUAL_NPU_CHECK" in error(VIRTUAL_NPU_DEFER="1", VIRTUAL_NPU_CHECK="race")
