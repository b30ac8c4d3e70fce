"""The interface of CANN (aclnn or aclop) of each kernel: in the record, and without libopapi.so."""

import importlib
import json
from pathlib import Path

import paddle
import pytest

import virtual_npu
from llm_npu.doctor.explain import naming

TABLE = json.loads((Path(virtual_npu.__file__).parent / "data/cann_calls.json").read_text(encoding="utf-8"))
CALLS = json.loads(
    (Path(importlib.import_module("llm_npu.cann").__file__).parent / "data/plugin.json").read_text(
        encoding="utf-8"
    )
)["kernels"]
# These run aclnn only with a flag of the plugin, FLAGS_npu_scale_aclnn or FLAGS_npu_split_aclnn.
BY_FLAG = {"scale", "split", "split_with_num"}
BOTH = ("aclnn", "aclop")
CONVERSIONS = {"aclnnCast"}  # of operands; the kernel itself is another type


def test_the_paths_follow_from_the_plugin_s_calls():
    expected = {}
    for kernel, calls in CALLS.items():
        functions, guarded, types = (set(calls.get(key, ())) for key in ("aclnn", "guarded", "aclop"))
        if kernel in BY_FLAG or (functions <= CONVERSIONS and types):
            expected[kernel] = ["aclop"]
        elif functions:
            expected[kernel] = ["aclnn", "aclop"] if functions <= guarded else ["aclnn"]
    interfaces = {kernel: [call for call in calls if call in BOTH] for kernel, calls in TABLE.items()}
    assert interfaces == expected
    assert set(virtual_npu.aclnn_kernels()) == {kernel for kernel, calls in CALLS.items() if "aclnn" in calls}


def test_the_record_has_the_path(on_npu):
    x = paddle.ones([4, 4])
    virtual_npu.reset_kernel_record()
    _ = paddle.matmul(x, x) + x
    _ = paddle.nn.functional.embedding(paddle.zeros([2], "int64"), x)
    _ = paddle.scale(x, 2.0)
    _ = x.reshape([16])
    _ = paddle.erfinv(x * 0.5)  # the plugin has no such kernel
    paths = {row.name: row.path for row in virtual_npu.kernel_record()}
    expected = {"matmul": "aclnn", "add": "aclnn", "embedding": "aclop", "scale": "aclop", "erfinv": ""}
    assert expected.items() <= paths.items()


GUARDED = """
import paddle, virtual_npu
paddle.set_device("npu:0")
x = paddle.ones([4])
assert (x + x).tolist() == [2.0] * 4
print([row.path for row in virtual_npu.kernel_record() if row.name == "add"])
"""


@pytest.mark.slow
def test_without_libopapi_kernels_that_check_run_aclop(run_program):
    done = run_program(GUARDED, VIRTUAL_NPU_LIBOPAPI="gone")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("dlopen libopapi.so failed") == 1 and "['aclop']" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "call"),
    [("matmul", "x @ x"), ("rms_norm_npu", "paddle_custom_device.npu.rms_norm_npu(x, x[0], 1e-6)")],
)
def test_without_libopapi_other_kernels_end_the_run(kernel, call, run_program):
    program = f"""
        import paddle, paddle_custom_device
        paddle.set_device("npu:0")
        x = paddle.ones([4, 4])
        x = x + x
        print("before", flush=True)
        {call}
        print("after", flush=True)
    """
    done = run_program(program, VIRTUAL_NPU_LIBOPAPI="gone")
    assert done.returncode == -11, (done.returncode, done.stderr)
    assert "before" in done.stdout and "after" not in done.stdout
    assert f"the kernel {kernel} has no aclop form" in done.stderr
    assert "libopapi-missing" in str(naming.explain_text(done.stdout + done.stderr))
