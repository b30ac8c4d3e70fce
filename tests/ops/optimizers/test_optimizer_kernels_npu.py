"""The optimizers' kernels: what their inputs switch, sparse gradients, static programs, instruction sets."""

import numpy as np
import paddle
import pytest
from instruction_sets import available
from optimizer_rules import (
    HALF_UNIT,
    LEARNING_RATE,
    LOW,
    MASTER_TOLERANCE,
    RULES,
    SHAPE,
    STEPS,
    MomentumRule,
    adam,
    adamw,
    exact,
    float32,
    golden,
    gradient,
    master_of,
    momentum,
    parameter,
    run,
)

pytestmark = [pytest.mark.usefixtures("on_npu"), pytest.mark.sampled]


def call_adamw(dtype, skip, beta_place, **changes):
    """One call of the operator itself; returns its tensors by name."""

    def tensor(values, kind="float32", place=None):
        return paddle.to_tensor(np.asarray(values, "float32"), place=place).astype(kind)

    cpu_or_npu = paddle.CPUPlace() if beta_place == "cpu" else None
    t = {
        "param": tensor(exact(0), dtype),
        "grad": tensor(gradient(0), dtype),
        "moment1": tensor(exact(1)),
        "moment2": tensor(np.abs(exact(2))),
        "beta1_pow": tensor([0.9], place=cpu_or_npu),
        "beta2_pow": tensor([0.999], place=cpu_or_npu),
        "master": tensor(exact(0)),
        "skip": None if skip is None else paddle.to_tensor([skip]),
        **changes,
    }
    paddle._C_ops.adamw_(
        t["param"], t["grad"], tensor([LEARNING_RATE]), t["moment1"], t["moment2"], None, t["beta1_pow"],
        t["beta2_pow"], t["master"], t["skip"], 0.9, 0.999, 1e-8, 1.0, 0.1, True, False, 1000, True,
        changes.get("use_global_beta_pow", False), False,
    )  # fmt: skip
    return t


@pytest.mark.parametrize("beta_place", ("cpu", "npu"))
@pytest.mark.parametrize("dtype", LOW)
def test_skip_update_leaves_everything_as_it_is(dtype, beta_place):
    t = call_adamw(dtype, True, beta_place)
    np.testing.assert_array_equal(float32(t["param"]), exact(0).astype("float32"))
    np.testing.assert_array_equal(t["master"].numpy(), exact(0).astype("float32"))
    np.testing.assert_array_equal(t["moment1"].numpy(), exact(1).astype("float32"))
    assert float(t["beta1_pow"]) == np.float32(0.9)


@pytest.mark.parametrize("beta_place", ("cpu", "npu"))
@pytest.mark.parametrize("dtype", LOW)
def test_powers_of_beta_advance_on_their_own_place(dtype, beta_place):
    t = call_adamw(dtype, False, beta_place)
    assert float(t["beta1_pow"]) == np.float32(0.9) * np.float32(0.9)
    assert t["beta1_pow"].place.is_cpu_place() == (beta_place == "cpu")
    assert np.abs(t["master"].numpy() - exact(0)).max() > 1e-3


@pytest.mark.parametrize("dtype", LOW)
def test_global_powers_of_beta_are_left_to_the_caller(dtype):
    t = call_adamw(dtype, None, "npu", use_global_beta_pow=True)
    assert float(t["beta1_pow"]) == np.float32(0.9)
    assert np.abs(t["master"].numpy() - exact(0)).max() > 1e-3


@pytest.mark.parametrize("dtype", LOW)
def test_multi_precision_without_master_weights_is_refused(dtype):
    with pytest.raises(ValueError, match="without master weights"):
        call_adamw(dtype, None, "npu", master=None)


@pytest.mark.parametrize("name", ("adam", "sgd"))
@pytest.mark.parametrize("dtype", ("float32", *LOW))
def test_sparse_gradients_equal_dense_ones(name, dtype):
    make = RULES[name][0]

    def train(sparse):
        table = paddle.nn.Embedding(*SHAPE, sparse=sparse)
        table.weight.set_value(exact(0).astype("float32"))
        table.to(dtype=dtype)
        optimizer = make([table.weight], multi_precision=True)
        gradients = paddle.to_tensor(gradient(0)[:3].astype("float32"))
        for step in range(4):
            (table(paddle.to_tensor([5, 6, step])).astype("float32") * gradients).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        return table.weight.numpy() if dtype == "float32" else master_of(optimizer, table.weight)

    np.testing.assert_allclose(train(True), train(False), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ("float32", *LOW))
def test_lazy_adam_leaves_rows_without_gradient_alone(dtype):
    """Row 3 is looked up twice in the first step, then never: it must not change afterwards."""
    table = paddle.nn.Embedding(*SHAPE, sparse=True)
    table.weight.set_value(exact(0).astype("float32"))
    table.to(dtype=dtype)
    optimizer = adam([table.weight], multi_precision=True, lazy_mode=True)
    for ids in ([3, 3], [5, 6], [5, 6]):
        table(paddle.to_tensor(ids)).astype("float32").sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    weights = table.weight.numpy() if dtype == "float32" else master_of(optimizer, table.weight)
    np.testing.assert_allclose(weights[3], exact(0)[3] - LEARNING_RATE, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.delete(weights, [3, 5, 6], 0), np.delete(exact(0), [3, 5, 6], 0))


@pytest.mark.parametrize(
    "options", ({}, {"weight_decay": 0.1}, {"use_multi_tensor": True, "weight_decay": 0.1}), ids=str
)
@pytest.mark.parametrize("dtype", ("float32", *LOW))
def test_momentum_rescales_the_gradient(dtype, options):
    def make(params):
        return momentum(params, multi_precision=True, rescale_grad=0.25, **options)

    param, optimizer = run(make, dtype)
    expected = golden(
        MomentumRule(l2=options.get("weight_decay", 0.0)), [gradient(s) / 4 for s in range(STEPS)]
    )
    got = float32(param) if dtype == "float32" else master_of(optimizer, param)
    np.testing.assert_allclose(got, expected, rtol=0, atol=MASTER_TOLERANCE)


def test_empty_and_single_element_parameters():
    for shape in ((0, 3), (1,)):
        param = parameter(np.zeros(shape), "bfloat16")
        optimizer = adamw([param], multi_precision=True)
        param.grad = paddle.ones(shape, "bfloat16")
        optimizer.step()
        np.testing.assert_allclose(master_of(optimizer, param), np.full(shape, -LEARNING_RATE), rtol=1e-5)


STATIC = """
import sys
import numpy as np
import paddle

def losses(name, dtype):
    main, startup = paddle.static.Program(), paddle.static.Program()
    paddle.set_default_dtype(dtype)
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [4, 8], "float32")
        start = paddle.nn.initializer.Constant(0.5)
        w = paddle.static.create_parameter([8, 8], dtype, default_initializer=start)
        loss = (paddle.matmul(x.astype(dtype), w).astype("float32") ** 2).mean()
        getattr(paddle.optimizer, name)(0.01, multi_precision=dtype != "float32").minimize(loss)
    executor = paddle.static.Executor(paddle.CustomPlace("npu", 0))
    executor.run(startup)
    feed = {"x": np.random.RandomState(1).randn(4, 8).astype("float32")}
    return [float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(6)]

paddle.enable_static()
paddle.set_device("npu")
for name in sys.argv[1:]:
    reference = np.array(losses(name, "float32"))
    for dtype, relative in (("bfloat16", 2.0**-6), ("float16", 2.0**-9)):
        np.testing.assert_allclose(losses(name, dtype), reference, rtol=relative, err_msg=name)
    print(name)
"""


@pytest.mark.slow
def test_static_programs_train_master_weights(run_python):
    names = ["AdamW", "Adam", "Momentum", "SGD", "Lamb"]
    done = run_python("-m", "virtual_npu", "-c", STATIC, *names)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == names


FORCED = """
import sys
import numpy as np
import paddle
import virtual_npu

def trained(threads):
    paddle.base.core.set_num_threads(threads)
    rng = np.random.RandomState(0)
    rows = []
    for size in (1, 17, 8192, 40003):
        for dtype in ("bfloat16", "float16"):
            values = paddle.to_tensor(rng.randn(size).astype("float32")).astype(dtype)
            param = paddle.base.framework.EagerParamBase.from_tensor(values)
            optimizer = paddle.optimizer.AdamW(0.01, parameters=[param], multi_precision=True, amsgrad=True)
            for _ in range(3):
                param.grad = paddle.to_tensor(rng.randn(size).astype("float32")).astype(dtype)
                optimizer.step()
            rows += [optimizer._master_weights[param.name].numpy(), param.astype("float32").numpy()]
    return np.concatenate(rows)

paddle.set_device("npu")
np.savez(sys.argv[1], one=trained(1), two=trained(2))
"""


@pytest.mark.slow
def test_instruction_sets_and_thread_counts_agree(run_python, tmp_path):
    script = tmp_path / "adamw.py"
    script.write_text(FORCED)
    results = {}
    for isa in available():
        out = tmp_path / f"{isa}.npz"
        variables = {"PADDLE_FUSED_ISA": isa, "OMP_NUM_THREADS": "2"}
        done = run_python("-m", "virtual_npu", script, out, **variables)
        assert done.returncode == 0, done.stderr[-2000:]
        results[isa] = np.load(out)
    for values in results.values():
        np.testing.assert_array_equal(values["two"], values["one"])
        # Fused multiply-add rounds once where the baseline rounds twice; 16-bit weights then fall either way.
        baseline = results["baseline"]["one"]
        np.testing.assert_allclose(values["one"], baseline, rtol=2 * HALF_UNIT["bfloat16"], atol=1e-6)
