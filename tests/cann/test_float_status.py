"""Runs without FloatStatus operators: loss scaler by isfinite, the library that answers, the emulation."""

import json
import shutil
import subprocess

import numpy as np
import paddle
import pytest
import run_inputs
from places import ROOT

import virtual_npu
from llm_npu.cann import float_status
from llm_npu.core.errors import UserError
from llm_npu.patches import loss_scaling
from llm_npu.training import metrics

SCRIPT = ROOT / "scripts/run_llama_npu.py"
TYPES = ("NPUAllocFloatStatus", "NPUClearFloatStatus", "NPUGetFloatStatus")
REFUSED = {"VIRTUAL_NPU_CARD": "910c", "VIRTUAL_NPU_FLOAT_STATUS": "refused"}
INTERPOSED = {float_status.VARIABLE: float_status.INTERPOSED}

# ---- the loss scaler --


@pytest.mark.usefixtures("on_npu")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_are_unscaled_as_by_the_kernel(dtype):
    for scale in (1024.0, 0.7):
        for bad in (1.0, np.inf, np.nan):
            arrays = [np.linspace(-5e4, 6e4, size, dtype=np.float32) for size in (1, 91, 128)]
            arrays[1][7] = bad
            mine = [paddle.to_tensor(array).astype(dtype) for array in arrays]
            kernel = [gradient.clone() for gradient in mine]
            overflow = loss_scaling.unscale(mine, paddle.to_tensor([scale]))
            _, expected = paddle._C_ops.check_finite_and_unscale_(kernel, paddle.to_tensor([scale]))
            assert overflow.shape == [1] and bool(overflow) == bool(expected) == (not np.isfinite(bad))
            for gradient, other in zip(mine, kernel, strict=True):
                assert gradient.dtype == other.dtype
                assert np.array_equal(
                    *(x.astype("float32").numpy() for x in (gradient, other)), equal_nan=True
                )


def test_an_unknown_choice_is_refused():
    with pytest.raises(UserError, match=f"{float_status.VARIABLE} is 'no'"):
        float_status.choice({float_status.VARIABLE: "no"})


def test_the_library_comes_before_paddle(monkeypatch, tmp_path):
    monkeypatch.setenv(float_status.VARIABLE, float_status.INTERPOSED)
    monkeypatch.setenv("LLM_NPU_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="has not imported paddle"):
        float_status.prepare()


# ---- the library, with a CANN and a plugin that are made here --

CANN = """
#include <string.h>
int aclopCompileAndExecute(const char* type, int a, void* b, void* c, int d, void* e, void* f, void* g,
                           int h, int i, const char* j, void* k) {
  return strstr(type, "FloatStatus") ? 500002 : a + d + h + i;
}
"""
PLUGIN = """
int aclopCompileAndExecute(const char*, int, void*, void*, int, void*, void*, void*, int, int, const char*,
                           void*);
int run(const char* type) { return aclopCompileAndExecute(type, 1, 0, 0, 2, 0, 0, 0, 3, 4, 0, 0); }
"""
PROGRAM = """
import ctypes, json, os, sys
from llm_npu.cann import float_status
line = float_status.prepare()
plugin = ctypes.CDLL(sys.argv[1], os.RTLD_NOW)  # RTLD_LOCAL, as Paddle does
print(json.dumps([line, *(plugin.run(type.encode()) for type in sys.argv[2:])]))
"""


@pytest.mark.slow
def test_the_library_answers_three_types_and_forwards_the_others(run_python, tmp_path):
    for name, text, more in (("acl_op_compiler", CANN, []), ("plugin", PLUGIN, ["-lacl_op_compiler"])):
        (tmp_path / f"{name}.c").write_text(text)
        command = [shutil.which("cc"), "-shared", "-fPIC", f"{name}.c", "-o", f"lib{name}.so", "-L."]
        subprocess.run(
            [*command, f"-Wl,-soname,lib{name}.so", "-Wl,-rpath,$ORIGIN", *more], cwd=tmp_path, check=True
        )
    types, path = (*TYPES, "GatherV2"), {"LD_LIBRARY_PATH": str(tmp_path), "LLM_NPU_CACHE": str(tmp_path)}

    def results(**variables):
        done = run_python("-c", PROGRAM, tmp_path / "libplugin.so", *types, **path, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert results() == ["", 500002, 500002, 500002, 10]
    line, *codes = results(**INTERPOSED)
    assert codes == [0, 0, 0, 10] and float_status.NAME in line
    [library] = tmp_path.rglob(float_status.NAME)
    assert str(library) in line


# ---- the virtual NPU as these cards --


def test_the_kernels_that_run_as_aclop_are_those_of_the_doctor():
    """A kernel with aclnn functions counts if it runs an aclop besides, as the plugin's sources say."""
    besides = {
        "check_finite_and_unscale",
        "cross_entropy_with_softmax_grad",
        "scale",
        "split",
        "split_with_num",
    }
    plugin = json.loads((ROOT / "llm_npu/cann/data/plugin.json").read_text(encoding="utf-8"))
    expected = {
        name: row["aclop"][0]
        for name, row in plugin["kernels"].items()
        if "aclop" in row and (set(row.get("aclnn", ())) <= {"aclnnCast"} or name in besides)
    }
    assert virtual_npu.aclop_kernels() == expected


def test_a_910c_has_two_devices_for_each_npu():
    assert [virtual_npu.device_count({"VIRTUAL_NPU_CARD": card}) for card in ("", "910b", "910c")] == [
        8,
        8,
        16,
    ]
    assert virtual_npu.device_count({"VIRTUAL_NPU_CARD": "910c", "VIRTUAL_NPU_DEVICES": "3"}) == 3


ACLOP = """
import paddle
paddle.set_device("npu:0")
x = paddle.ones([4, 4])
assert float(paddle.matmul(x, x).sum()) == 64  # aclnn
for _ in range(2):
    try:
        paddle.nn.functional.embedding(paddle.to_tensor([1, 2]), x)
        print("ran")
    except OSError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "type"),
    [(REFUSED, TYPES[0]), ({"VIRTUAL_NPU_CARD": "950"}, "GatherV2"), ({"VIRTUAL_NPU_CARD": "910c"}, None)],
    ids=["910c", "950", "allowed"],
)
def test_an_aclop_is_refused_where_the_card_refuses_it(run_program, variables, type):
    done = run_program(ACLOP, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("500002") == (2 if type else 0) and done.stdout.count("ran") == (
        0 if type else 2
    )
    assert type is None or done.stdout.count(type) == 2


MC2 = """
import socket
import paddle
from paddle.base import core
from paddle_custom_device.npu import ops
paddle.set_device("npu:0")
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
store = core.TCPStore("127.0.0.1", port, True, 1)
group = core.ProcessGroupCustom.create(store, "npu", 0, 1, 0)
name = group.get_comm_name(0)
x = paddle.ones([8, 256], "bfloat16")
try:
    ops.fused_mm_allreduce(x, x.t(), bias=None, hcom=name, reduce_op="sum", comm_turn=0)
    print("ran")
except Exception as error:
    print(error)
try:
    ops.fused_allgather_mm(x, x.t(), None, name, 16, 0, True, 0)
except Exception as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("card", ["910b", "910c"])
def test_products_with_collectives_are_those_of_the_card(run_program, card):
    done = run_program(MC2, VIRTUAL_NPU_CARD=card, PADDLE_TRAINER_ID="0")
    assert done.returncode == 0, done.stderr
    assert ("aclnnMatmulAllReduce" in done.stdout) is (card == "910c")
    # 16 ranks are accepted; the domain has one.
    assert ("communication domain has 1" in done.stdout) is (card == "910c"), done.stdout


# ---- the main job on a 910C without FloatStatus --


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    short = "--max_seq_length 32 --per_device_train_batch_size 2 --do_eval false --decay_steps 100"
    inputs = run_inputs.inputs(tmp_path_factory.mktemp("inputs"))
    return [*run_inputs.words(inputs), *short.split()]


def losses(folder):
    rows = [row for row in metrics.read(folder / metrics.FILE) if "loss" in row]
    return [(row["loss"], row.get("grad_norm"), row.get("skipped", False)) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("--fp16",)], ids=["bf16", "fp16"])
@pytest.mark.parametrize("ranks", [(), ("--nproc", "2")], ids=["one", "two"])
def test_a_run_trains_without_float_status(run_python, tmp_path, arguments, precision, ranks):
    """Interposed, with a resume, it has the losses of a card that has the operators; otherwise it ends."""

    def run(name, steps, *more, **variables):
        flags = [*precision, *ranks, "--max_steps", steps, "--save_steps", "2", *more]
        return run_python(SCRIPT, *arguments, *flags, "--output_dir", tmp_path / name, **variables)

    done = run("with", 4, **{float_status.VARIABLE: float_status.PLUGIN})
    assert done.returncode == 0, done.stderr
    done = run("without", 2, **REFUSED, **INTERPOSED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(float_status.NAME) == 1
    done = run("without", 4, "--resume_from_checkpoint", **REFUSED, **INTERPOSED)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "without") == losses(tmp_path / "with")
    for choice in (float_status.ISFINITE, float_status.PLUGIN):
        done = run(choice, 2, **REFUSED, **{float_status.VARIABLE: choice})
        assert done.returncode != 0 and "500002" in done.stderr and TYPES[0] in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("ranks", [(), ("--nproc", "2")], ids=["one", "two"])
def test_the_same_steps_are_skipped(run_python, tmp_path, arguments, level, ranks):
    """The first loss scale is too large: by the kernel, and by isfinite with and without FloatStatus."""
    flags = ["--fp16", "--fp16_opt_level", level, "--scale_loss", "1e6", "--max_steps", "12", *ranks]
    runs = {
        "kernel": {float_status.VARIABLE: float_status.PLUGIN},
        "isfinite": {},
        "interposed": {**REFUSED, **INTERPOSED},
    }
    for name, variables in runs.items():
        done = run_python(SCRIPT, *arguments, *flags, "--output_dir", tmp_path / name, **variables)
        assert done.returncode == 0, done.stderr
    expected = losses(tmp_path / "kernel")
    assert 0 < sum(skipped for *_, skipped in expected) < len(expected)
    assert losses(tmp_path / "isfinite") == losses(tmp_path / "interposed") == expected


@pytest.mark.slow
def test_the_kernel_overlooks_an_overflow_where_the_library_answers(run_program):
    """So the library is loaded only together with the loss scaler by isfinite."""
    program = """
        from llm_npu import device
        device.select("npu")
        import paddle
        from llm_npu.patches import loss_scaling
        def overflow():
            return bool(paddle._C_ops.check_finite_and_unscale_([paddle.to_tensor([float("inf")])], scale)[1])
        scale = paddle.to_tensor([2.0])
        print(overflow())
        loss_scaling.decide_by_isfinite()
        print(overflow())

        from llm_npu.core.errors import UserError
        import paddle.distributed as dist
        mesh = dist.ProcessMesh([0], dim_names=["x"])
        distributed = dist.shard_tensor(paddle.ones([2]), mesh, [dist.Replicate()])
        try:
            paddle._C_ops.check_finite_and_unscale_([distributed], scale)
        except UserError as error:
            print("refused" if "bfloat16" in str(error) else error)
        paddle.enable_static()
        with paddle.static.program_guard(paddle.static.Program()):
            gradient = paddle.static.data("x", [2], "float32")
            try:
                paddle.static.amp.amp_nn.check_finite_and_unscale([gradient], paddle.full([1], 2.0))
            except UserError as error:
                print("refused" if "bfloat16" in str(error) else error)
    """
    done = run_program(program, **REFUSED, **INTERPOSED)
    assert done.stdout.split() == ["False", "True", "refused", "refused"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("choice", [float_status.INTERPOSED, float_status.ISFINITE])
def test_acceptance_on_a_910c(run_python, tmp_path, choice):
    check = ["--device", "virtual_npu", "--only", "training", "operators"]
    check += ["--output_dir", tmp_path / "result"]
    done = run_python(ROOT / "scripts/accept_card.py", *check, **REFUSED, **{float_status.VARIABLE: choice})
    assert done.returncode == (0 if choice == float_status.INTERPOSED else 1), done.stdout
    assert (TYPES[0] in done.stdout) is (choice != float_status.INTERPOSED)
