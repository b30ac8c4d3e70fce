"""llm_npu.dtypes.watching: lines as paddle-custom-npu's sources write them; no card writes them here."""

import pytest

from llm_npu.dtypes.watching import AICPULines

OPERATOR = "I0822 10:11:12.345678  4711 npu_op_runner.h:397] NpuAclnnOpRunner: aclnnMul"
AICPU = (
    "I0822 10:11:12.345680  4711 npu_op_runner.h:255] Kernel is running on the AICPU."
    "For better performance. use other dtypes."
)
OTHER_THREAD = "I20240822 10:11:12.345690  4712 npu_op_runner.h:397] NpuAclnnOpRunner: aclnnAdd"
OF_OTHER_THREAD = AICPU.replace("4711", "4712").replace("I0822", "I20240822")
OTHERS = (
    "W0822 10:11:12.345678  4711 device_context.cc:12] Kernel is running on the AICPU, says another file",
    "I0822 10:11:12.345678  4711 npu_op_runner.cc.o: not a line of glog",
    "Traceback (most recent call last):",
    "",
)


def test_float64_tensors_are_counted_by_operator_and_thread():
    lines = AICPULines()
    log = [OPERATOR, AICPU, AICPU, OTHER_THREAD, AICPU, OF_OTHER_THREAD, OPERATOR.replace("Mul", "Exp")]
    assert all(lines.take(line) for line in log)
    assert lines.tensors == {"aclnnMul": 3, "aclnnAdd": 1}


def test_a_warning_before_any_operator_is_counted_too():
    lines = AICPULines()
    assert lines.take(AICPU)
    assert lines.tensors == {"an operator without a name": 1}


def test_other_lines_are_left_alone():
    lines = AICPULines()
    assert not any(lines.take(line) for line in OTHERS)
    assert not lines.tensors


PROGRAM = f"""
import os, sys
from llm_npu.dtypes.watching import AICPULines, lines_removed_from_stderr
lines = AICPULines()
print("before", file=sys.stderr)
with lines_removed_from_stderr(lines.take):
    for _ in range(1000):
        os.write(2, {(OPERATOR + chr(10) + AICPU + chr(10)).encode()!r})
    print("between", file=sys.stderr)
    os.system("echo from a child >&2")
    os.write(2, b"without an end")
print("after", file=sys.stderr)
print(dict(lines.tensors))
"""


@pytest.mark.slow
def test_the_plugins_lines_do_not_flood_stderr(run_python):
    done = run_python("-c", PROGRAM)
    assert done.stdout.splitlines() == ["{'aclnnMul': 1000}"], done.stderr
    assert done.stderr.endswith("before\nbetween\nfrom a child\nwithout an endafter\n")
