"""The host kernels on the instruction sets of this machine other than the default."""

import pytest
from instruction_sets import NEEDS, available
from places import TESTS

pytestmark = pytest.mark.sampled

KERNEL_TESTS = ("attention_kernels", "rms_norm_npu", "fused_rope_npu", "swiglu_npu", "loss_and_embedding_npu")
KERNEL_TESTS += ("rotary", "gated", "fused_adamw", "fused_adamw_mindspeed", "fused_adamw_many")
KERNEL_TESTS += ("elementwise_npu", "gelu_npu", "linear_cross_entropy")

# In float32 attention is measured against Paddle's matmul, which runs on the widest instructions whatever we
# ask for: what it gains by fused multiply-adds, the baseline does not have.
SELECTED = {"baseline": "not (test_output_and_gradients and float32)"}


# These tests run on the widest by themselves; test_kernels_check.py has all kernels on the others by default.
@pytest.mark.slow
@pytest.mark.parametrize("isa", available()[:-1])
def test_kernels_of_one_instruction_set(isa, run_python):
    files = [next(TESTS.rglob(f"test_{name}.py")) for name in KERNEL_TESTS]
    selected = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", SELECTED.get(isa, ""))
    done = run_python(*selected, *files, PADDLE_FUSED_ISA=isa)
    assert done.returncode == 0, done.stdout[-3000:]


SWIGLU = """
import os
import virtual_npu; virtual_npu.activate()
os.environ["PADDLE_FUSED_ISA"] = "{isa}"  # past the check of activate()
import paddle; paddle.set_device("npu:0")
from paddle_fused.paddle_release import swiglu
swiglu(paddle.ones([4]))
"""


@pytest.mark.slow
def test_unknown_instruction_set_is_refused_by_the_kernels_too(run_python):
    done = run_python("-c", SWIGLU.format(isa="sse9"), VIRTUAL_NPU_QUIET="1")
    assert done.returncode == 1, done.stderr[-3000:]
    known = "baseline, neon, avx2, avx512, avx512_bf16 and amx"
    assert f"PADDLE_FUSED_ISA=sse9 is unknown; accepted: {known}" in done.stderr


# By default the narrowest, the widest there is and the first that this machine lacks stand for the others.
ISAS = list(NEEDS)
QUICK = {"baseline", available()[-1], *[isa for isa in ISAS if isa not in available()][:1]}


@pytest.mark.parametrize(
    "isa", [isa if isa in QUICK else pytest.param(isa, marks=pytest.mark.slow) for isa in ISAS]
)
def test_instruction_set_runs_unless_this_machine_lacks_it(isa, run_python):
    done = run_python("-c", SWIGLU.format(isa=isa), VIRTUAL_NPU_QUIET="1")
    assert done.returncode == (0 if isa in available() else 1), done.stderr[-3000:]
    refusal = f"PADDLE_FUSED_ISA={isa}, which this machine does not support; its widest is {available()[-1]}."
    assert (refusal in done.stderr) == (isa not in available())
