"""The initial values of bfloat16 weights on npu."""

import pytest

PROGRAM = """
import sys
from llm_npu import device
device.select("npu")
import numpy as np
import paddle
from llm_npu import patches
if sys.argv[1] == "patched":
    patches.apply()
    patches.apply()
paddle.set_device("npu")
paddle.set_default_dtype("bfloat16")
initializer = paddle.nn.initializer
for kind in (
    initializer.Uniform(-0.5, 0.25),
    initializer.XavierUniform(),
    initializer.XavierNormal(),
    initializer.KaimingUniform(),
    initializer.KaimingNormal(),
    initializer.TruncatedNormal(0.0, 0.02),
):
    paddle.seed(1)
    try:
        weight = paddle.create_parameter([64, 33], "bfloat16", default_initializer=kind)
        print(type(kind).__name__, weight.dtype, weight.place, weight.numpy().tobytes().hex())
    except NotImplementedError:
        print(type(kind).__name__, "refused")
"""


@pytest.mark.slow
def test_bfloat16_weights_are_initialized_on_the_npu(run_python):
    """With the same bits as by Paddle's kernels for bfloat16, which a card runs on the host."""
    upstream = run_python("-c", PROGRAM, "upstream").stdout.splitlines()
    done = run_python("-c", PROGRAM, "patched", VIRTUAL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr
    assert len(upstream) == 6 and "bfloat16" in upstream[0]
    assert done.stdout.splitlines() == upstream


@pytest.mark.slow
def test_upstream_weights_are_refused_under_strict(run_python):
    """When this fails, Paddle has mended it and llm_npu.patches can forget it."""
    done = run_python("-c", PROGRAM, "upstream", VIRTUAL_NPU_STRICT="1")
    assert done.stdout.count("refused") >= 4, done.stderr
