"""Paddle's descriptions of devices on npu."""

import pytest

from paddle_fused import paddle_release

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (paddle_release.at_least(3, 3) and paddle_release.before(3, 4)), reason="other releases lack it"
    ),
]
PROGRAM = """
import sys
import virtual_npu
virtual_npu.activate()
import paddle
from llm_npu.patches import devices
if sys.argv[1] == "patched":
    devices.fix_custom_devices()
    devices.fix_custom_devices()
paddle.set_device("npu")
x, on_cpu = paddle.ones([1]), paddle.ones([1], device="cpu")
"""
PATCHED = """
device = x.device
assert device == "npu:0" == paddle.device("npu:0") == paddle.device("npu", 0) == paddle.device("npu")
assert (device.type, device.index) == ("npu", 0)
assert on_cpu.device == "cpu" and on_cpu.to(device).place == x.place
assert paddle.zeros([2], device=device).place == x.place
with paddle.device("cpu"):
    assert paddle.ones([1]).place.is_cpu_place()
    with device:
        assert paddle.ones([1]).place == x.place
try:
    paddle.device("tpu:0")
except ValueError:
    print("refused")
"""


def test_npu_is_a_device(run_python):
    done = run_python("-c", PROGRAM + PATCHED, "patched")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "refused"


@pytest.mark.parametrize(
    ("line", "symptom"),
    [
        ("x.device", "no attribute 'get_device_type'"),
        ("paddle.device('npu:0')", "Unsupported device type: npu"),
    ],
)
def test_upstream_refuses_npu(run_python, line, symptom):
    """When this fails, Paddle has mended it and llm_npu.patches can forget it."""
    done = run_python("-c", PROGRAM + line, "upstream")
    assert symptom in done.stderr
