"""scripts/bench_device.py runs and its figures fit together; how large they are is not asserted."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "bench_device.py"


@pytest.fixture(scope="module")
def bench_device():
    spec = importlib.util.spec_from_file_location("bench_device", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result(bench_device):
    return bench_device.bench(step_rounds=2, op_rounds=2, hidden=32, layers=1, length=16)


def test_json_has_every_figure(result):
    read_back = json.loads(json.dumps(result))
    assert set(read_back) == {"machine", "ops_us", "step_ms", "goals"}
    assert set(read_back["machine"]) == {"processor", "cores", "threads", "commit"}
    assert set(read_back["ops_us"]) == {"add", "matmul", "relu"}
    for timing in [*read_back["ops_us"].values(), read_back["step_ms"]]:
        assert set(timing) == {"cpu", "npu", "overhead", "ratio"}
        assert timing["cpu"]["median"] > 0 and timing["npu"]["median"] > 0
        assert math.isclose(timing["overhead"], timing["npu"]["median"] - timing["cpu"]["median"])
        assert math.isclose(timing["ratio"], timing["npu"]["median"] / timing["cpu"]["median"])
    assert all(isinstance(met, bool) for met in read_back["goals"].values())


def test_table_says_whether_the_goals_are_met(bench_device, result):
    lines = bench_device.text(result).splitlines()
    assert len(lines) == 8
    assert all(line.startswith(("goal met:", "goal MISSED:")) for line in lines[-2:])


def test_the_places_take_turns(bench_device):
    turns = []

    def measure(place):
        turns.append(place)
        return 1.0

    times = bench_device.interleaved(measure, rounds=2)
    assert turns == ["cpu", "npu"] * 3  # one turn to warm up, then two that count
    assert times == {"cpu": [1.0, 1.0], "npu": [1.0, 1.0]}


def test_different_losses_are_refused(bench_device, monkeypatch):
    class Training:
        def __init__(self, place, *sizes):
            self.loss = {"cpu": 1.0, "npu": 1.0 + 1e-4}[place]

        def step(self):
            return 0.0, self.loss

    monkeypatch.setattr(bench_device, "LlamaTraining", Training)
    with pytest.raises(bench_device.Disagreement, match="differs at step 0"):
        bench_device.bench_step(rounds=1)
