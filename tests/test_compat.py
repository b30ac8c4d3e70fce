"""Each cure in llm_npu.compat is needed, and cures."""

import subprocess

import pytest

# A dataset whose sample 2 cannot be read, read to the end or to the first error.
PROGRAM = """
import sys
from llm_npu import device
device.select(sys.argv[1])
import paddle
from llm_npu import compat
if sys.argv[2] == "cured":
    compat.apply()
    compat.apply()

class Samples(paddle.io.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == int(sys.argv[3]):
            raise ValueError(f"sample {index} is damaged")
        return {"input_ids": paddle.zeros([3]).numpy()}

paddle.set_device(sys.argv[1])
try:
    print(len(list(paddle.io.DataLoader(Samples(), batch_size=1))), "batches")
except ValueError as error:
    print("raised:", error)
"""


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_data_loader_reports_errors(run_python, device):
    def outcome(cure, damaged):
        return run_python("-c", PROGRAM, device, cure, damaged).stdout

    assert outcome("cured", 0) == "raised: sample 0 is damaged\n"
    assert outcome("cured", 2) == "raised: sample 2 is damaged\n"
    assert outcome("cured", 99) == "4 batches\n"


def test_stock_data_loader_waits_for_ever(start_python):
    """When this fails, Paddle has been cured and llm_npu.compat can forget it."""
    process = start_python("-c", PROGRAM, "cpu", "stock", 0)
    # The reading thread ends with a traceback; the imports before it take as long as they take.
    assert any("sample 0 is damaged" in line for line in process.stderr)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=5)  # what is left for the program is to print a line
