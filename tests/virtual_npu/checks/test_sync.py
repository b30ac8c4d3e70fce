"""VIRTUAL_NPU_CHECK=sync: the host's waits for the device, by program line."""

import re
import sys

import pytest
import ranks

from virtual_npu.synchronizations import DEVICE, KINDS, STREAM, TO_DEVICE, TO_HOST, HostWaits

COUNTED = {"VIRTUAL_NPU_CHECK": "sync", "VIRTUAL_NPU_QUIET": "1"}
ROW = re.compile(
    rf"^ +(?P<waits>[\d.,]+) +(?P<launches>[\d,]+) +(?P<bytes>[\d,]+)  (?P<kind>{'|'.join(KINDS)}) +"
    r"(?P<file>\S+):(?P<line>\d+) in (?P<function>\S+)",
    re.MULTILINE,
)


def rows(stderr: str) -> dict[int, tuple[float, int, int, str]]:
    """{line: (waits per step, launches, bytes, kind)} of the table."""
    table = {}
    for row in ROW.finditer(stderr):
        number, launches, size = (row[name].replace(",", "") for name in ("waits", "launches", "bytes"))
        table[int(row["line"])] = float(number), int(launches), int(size), row["kind"]
    return table


PLANTED = """
import paddle
paddle.set_device("npu")
x = paddle.ones([4, 8])
for i in range(3):
    y = x * 2
    y = y + 1
    y.sum().item()
    if y.max() > 100:
        print("large")
    y.numpy()
    paddle.device.synchronize()
"""


@pytest.mark.slow
def test_waits_of_a_whole_program(run_program):
    done = run_program(PLANTED, **COUNTED)
    assert done.returncode == 0, done.stderr
    counts = rows(done.stderr)
    assert {line: row[0] for line, row in counts.items()} == {8: 3, 9: 3, 11: 3, 12: 3}
    assert counts[8][1:] == (3, 4, KINDS[TO_HOST])  # three launches, a float32
    assert counts[9][3] == counts[11][3] == KINDS[TO_HOST]
    assert counts[11][1] == 0 and counts[11][2] >= 4 * 8 * 4
    assert counts[12][3] == KINDS[DEVICE]


STEPS = """
import virtual_npu
import paddle
paddle.set_device("npu")
x = paddle.ones([4, 8])
print(float(x.sum()))
for i in range(4):
    virtual_npu.begin_step()
    y = x * 2
    if i % 2:
        float(y.sum())
    virtual_npu.end_step()
    y.tolist()
"""


def test_waits_in_and_between_steps(run_program):
    """Waits before the first step and after the last are not reported."""
    done = run_program(STEPS, **COUNTED)
    assert done.returncode == 0, done.stderr
    counts = rows(done.stderr)
    assert counts.keys() == {11, 13}
    assert counts[11][0] == 0.5 and counts[13][0] == 0.75
    inside, between = done.stderr.split("between steps:")
    assert rows(inside).keys() == {11} and rows(between).keys() == {13}


@pytest.mark.slow
@pytest.mark.parametrize("checks", ["sync", ""])
def test_no_table_without_waits_or_check(run_program, checks):
    program = "import paddle\npaddle.set_device('npu')\nx = paddle.ones([2]) * 2\n"
    program += "" if checks else "x.numpy()\n"
    done = run_program(program, VIRTUAL_NPU_CHECK=checks, VIRTUAL_NPU_QUIET="1")
    assert done.returncode == 0 and "host waits" not in done.stderr, done.stderr


@pytest.mark.slow
def test_marks_in_the_journal(run_program, tmp_path):
    done = run_program(STEPS, VIRTUAL_NPU_JOURNAL=str(tmp_path / "journal"), **COUNTED)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "journal").read_text().splitlines()
    waits = [line for line in lines if "host waits" in line]
    assert len(waits) >= 6 and "copy to the host" in waits[-1] and ":13 " in waits[-1]


RANKS = """
import sys
import paddle
import paddle.distributed as dist
import ranks
paddle.set_device("npu")
dist.init_parallel_env()
x = paddle.ones([8])
for i in range(3):
    dist.all_reduce(x)
    x.numpy()
ranks.write({})
"""


@pytest.mark.slow
def test_rank_0_prints_the_table(tmp_path):
    (tmp_path / "program.py").write_text(RANKS)
    ranks.run(tmp_path / "program.py", 2, tmp_path / "out", **COUNTED)
    first, second = ((tmp_path / f"out/{rank}.log").read_text() for rank in range(2))
    waits, launches, _, kind = rows(first)[11]
    assert (waits, launches, kind) == (3, 1, KINDS[TO_HOST])
    assert "rank 1: " in second and not rows(second)


def test_a_copy_belongs_to_the_wait_before_it():
    waits = HostWaits()
    frame = sys._getframe()
    for copy in (TO_HOST, TO_HOST, TO_DEVICE):
        calls = ((STREAM, 3, 0, False), (STREAM, 0, 0, True), (copy, 0, 8, True), (STREAM, 0, 0, True))
        for kind, launches, size, continues in calls:
            waits.add(kind, launches, size, continues, frame)
    kinds = {
        row["kind"]: (row["waits"], row["launches"], row["bytes"]) for row in ROW.finditer(waits.table())
    }
    assert kinds == {KINDS[TO_HOST]: ("2", "3", "8"), KINDS[TO_DEVICE]: ("1", "3", "8")}
