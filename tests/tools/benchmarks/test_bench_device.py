"""python -m benchmarks device runs and its figures fit together; how large they are is not asserted."""

import json
import math

import pytest

from benchmarks import device
from benchmarks.step import LlamaSize

TINY = LlamaSize(hidden=32, layers=1, vocabulary=4096, length=16, heads=8, intermediate=88)


@pytest.fixture(scope="module")
def result():
    return device.bench(rounds=2, op_rounds=2, size=TINY)


@pytest.mark.slow
def test_json_has_every_figure(result):
    read_back = json.loads(json.dumps(result))
    assert set(read_back) == {"machine", "ops_us", "step_ms", "goals"}
    assert {"processor", "cores", "threads", "commit"} <= set(read_back["machine"])
    assert set(read_back["ops_us"]) == {"add", "matmul", "relu"}
    for timing in [*read_back["ops_us"].values(), read_back["step_ms"]]:
        assert set(timing) == {"cpu", "npu", "overhead", "ratio"}
        assert timing["cpu"]["median"] > 0 and timing["npu"]["median"] > 0
        assert math.isclose(timing["overhead"], timing["npu"]["median"] - timing["cpu"]["median"])
        assert math.isclose(timing["ratio"], timing["npu"]["median"] / timing["cpu"]["median"])
    assert all(isinstance(met, bool) for met in read_back["goals"].values())


def test_table_says_whether_the_goals_are_met(result):
    lines = device.text(result).splitlines()
    assert len(lines) == 8
    assert all(line.startswith(("goal met:", "goal MISSED:")) for line in lines[-2:])


def test_different_losses_are_refused(monkeypatch):
    class Training:
        def __init__(self, place, size):
            self.loss = {"cpu": 1.0, "npu": 1.0 + 1e-4}[place]

        def step(self):
            return self.loss

    monkeypatch.setattr(device, "llama", Training)
    with pytest.raises(device.Wrong, match="differs at step 0"):
        device.bench_step(rounds=1)
