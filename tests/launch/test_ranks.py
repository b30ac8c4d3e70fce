"""What the processes of a run tell each other arrives as it was, in dtypes that a card's cores handle."""

from pathlib import Path

import pytest
import ranks as launcher

from llm_npu.core import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("gathered_values.py")


def test_two_processes(tmp_path):
    for report in launcher.run(PROGRAM, 2, tmp_path):
        assert report["table"] == [[0.1, 2.0**-60], [1.1, 2.0**-60]]
        assert report["told"] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "é" * 1000}]
        assert report["first"] == [0]
        assert report["in group"] == ["a", None]
        assert report["own"].startswith("clean"), report["own"]
        assert "uint8" in report["upstream"]  # Paddle's own would leave the cores


def test_one_process_tells_itself():
    assert ranks.table([0.5]).tolist() == [[0.5]]
    assert ranks.gathered("a") == ranks.ALONE.gather("a") == ["a"]
    assert ranks.ALONE.from_first("a") == "a"
