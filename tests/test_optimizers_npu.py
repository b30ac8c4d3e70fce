"""Optimizers on npu against their update rules in float64; 16-bit parameters follow master weights."""

import numpy as np
import paddle
import pytest

SHAPE = (37, 21)  # no multiple of any vector width
STEPS = 20
LEARNING_RATE = 1e-2
LOW = ("bfloat16", "float16")
# Half a unit in the last place of a value in [1, 2).
HALF_UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
MASTER_TOLERANCE = (
    1e-5  # float32 state over 20 steps of 1e-2: a few roundings of the weights and of lr / sqrt(v)
)


@pytest.fixture(autouse=True)
def on_npu():
    paddle.set_device("npu:0")


def exact(seed, scale=1.0):
    """Random values that float16 and bfloat16 hold exactly."""
    return np.round(np.random.RandomState(seed).randn(*SHAPE) * 16).clip(-64, 64) / 16 * scale


def gradient(step):
    return exact(100 + step, 0.25)


def parameter(values, dtype, name=None):
    tensor = paddle.to_tensor(values.astype("float32")).astype(dtype)
    return paddle.base.framework.EagerParamBase.from_tensor(tensor, name=name)


def run(make, dtype, steps=STEPS, gradients=None, grad_dtype=None):
    """The parameter and the optimizer after `steps` steps with gradient(0), gradient(1), ..."""
    param = parameter(exact(0), dtype)
    optimizer = make([param])
    for step in range(steps):
        values = gradient(step) if gradients is None else gradients[step]
        param.grad = paddle.to_tensor(values.astype("float32")).astype(grad_dtype or dtype)
        optimizer.step()
    return param, optimizer


def float32(tensor):
    return tensor.astype("float32").numpy()


def master_of(optimizer, param):
    return optimizer._master_weights[param.name].numpy()


class AdamRule:
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w = (1 - lr wd) w - lr m^ / (sqrt(v^) + eps)."""

    def __init__(self, weight_decay=0.0, lr=LEARNING_RATE, amsgrad=False):
        self.weight_decay, self.lr, self.amsgrad = weight_decay, lr, amsgrad
        self.m = self.v = self.largest = 0.0
        self.t = 0

    def __call__(self, weight, grad):
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        self.t += 1
        self.m = beta1 * self.m + (1 - beta1) * grad
        self.v = beta2 * self.v + (1 - beta2) * grad**2
        self.largest = np.maximum(self.largest, self.v) if self.amsgrad else self.v
        denominator = np.sqrt(self.largest / (1 - beta2**self.t)) + epsilon
        weight = weight * (1 - self.lr * self.weight_decay)
        return weight - self.lr * self.m / (1 - beta1**self.t) / denominator


class MomentumRule:
    """v = mu v + g + l2 w;  w = w - lr v,  with Nesterov w = w - lr (g + l2 w + mu v)."""

    def __init__(self, nesterov=False, l2=0.0, lr=LEARNING_RATE):
        self.nesterov, self.l2, self.lr = nesterov, l2, lr
        self.velocity = 0.0

    def __call__(self, weight, grad):
        grad = grad + self.l2 * weight
        self.velocity = 0.9 * self.velocity + grad
        return weight - self.lr * (grad + 0.9 * self.velocity if self.nesterov else self.velocity)


def sgd_rule(weight, grad):
    return weight - LEARNING_RATE * grad


def golden(rule, gradients=None):
    weight = exact(0)
    for step in range(STEPS):
        weight = rule(weight, gradient(step) if gradients is None else gradients[step])
    return weight


def adam(params, **options):
    return paddle.optimizer.Adam(LEARNING_RATE, parameters=params, **options)


def adamw(params, **options):
    return paddle.optimizer.AdamW(LEARNING_RATE, parameters=params, weight_decay=0.1, **options)


def momentum(params, **options):
    return paddle.optimizer.Momentum(LEARNING_RATE, 0.9, parameters=params, **options)


RULES = {
    "adam": (adam, AdamRule),
    "adam amsgrad": (lambda p, **o: adam(p, amsgrad=True, **o), lambda: AdamRule(amsgrad=True)),
    "adam multi-tensor": (lambda p, **o: adam(p, use_multi_tensor=True, **o), AdamRule),
    "adamw": (adamw, lambda: AdamRule(0.1)),
    "adamw amsgrad": (lambda p, **o: adamw(p, amsgrad=True, **o), lambda: AdamRule(0.1, amsgrad=True)),
    "adamw lr_ratio": (
        lambda p, **o: adamw(p, lr_ratio=lambda _: 0.5, **o),
        lambda: AdamRule(0.1, lr=0.5 * LEARNING_RATE),
    ),
    "adamw without decay": (lambda p, **o: adamw(p, apply_decay_param_fun=lambda _: False, **o), AdamRule),
    "momentum": (momentum, MomentumRule),
    "momentum nesterov": (
        lambda p, **o: momentum(p, use_nesterov=True, **o),
        lambda: MomentumRule(nesterov=True),
    ),
    "momentum l2": (lambda p, **o: momentum(p, weight_decay=0.1, **o), lambda: MomentumRule(l2=0.1)),
    "momentum multi-tensor": (lambda p, **o: momentum(p, use_multi_tensor=True, **o), MomentumRule),
    "sgd": (lambda p, **o: paddle.optimizer.SGD(LEARNING_RATE, parameters=p, **o), lambda: sgd_rule),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", RULES)
def test_master_weights_follow_the_rule(name, dtype):
    make, rule = RULES[name]
    param, optimizer = run(lambda p: make(p, multi_precision=True), dtype)
    master = master_of(optimizer, param)
    assert master.dtype == np.float32
    np.testing.assert_allclose(master, golden(rule()), rtol=0, atol=MASTER_TOLERANCE)
    rounded = paddle.to_tensor(master).astype(dtype).astype("float32").numpy()
    np.testing.assert_array_equal(float32(param), rounded)


@pytest.mark.parametrize("name", RULES)
def test_float32_follows_the_rule_and_equals_the_cpu_place(name):
    make, rule = RULES[name]
    on_device = float32(run(make, "float32")[0])
    np.testing.assert_allclose(on_device, golden(rule()), rtol=0, atol=MASTER_TOLERANCE)
    if "lr_ratio" in name:
        return  # Paddle refuses it on the CPU place
    paddle.set_device("cpu")
    np.testing.assert_array_equal(on_device, float32(run(make, "float32")[0]))


@pytest.mark.filterwarnings("ignore:Accumulating with FP16")
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", RULES)
def test_without_master_weights_one_step_is_rounded_once(name, dtype):
    make, rule = RULES[name]
    expected = rule()(exact(0), gradient(0))
    got = float32(run(lambda p: make(p, multi_precision=False), dtype, steps=1)[0])
    # Half a unit in the last place, and 0.2% of the step where the velocity is kept in 16 bits.
    bound = 1.01 * HALF_UNIT[dtype] * 2 ** np.floor(np.log2(np.abs(expected))) + 2e-3 * np.abs(
        expected - exact(0)
    )
    assert np.all(np.abs(got - expected) <= bound + 1e-6)


@pytest.mark.parametrize("dtype", LOW)
def test_float32_gradients_of_16_bit_parameters(dtype):
    """As amp_master_grad keeps them: what 16 bits cannot hold still reaches the master weights."""
    gradients = [gradient(step) * (1 + 2.0**-13) for step in range(STEPS)]
    param, optimizer = run(lambda p: adamw(p, multi_precision=True), dtype, STEPS, gradients, "float32")
    expected = golden(AdamRule(0.1), gradients)
    np.testing.assert_allclose(master_of(optimizer, param), expected, rtol=0, atol=MASTER_TOLERANCE)


@pytest.mark.parametrize("dtype", LOW)
def test_updates_too_small_for_the_parameter_add_up_in_the_master_weights(dtype):
    def make(params):
        return paddle.optimizer.AdamW(1e-5, parameters=params, weight_decay=0.0, multi_precision=True)

    param, optimizer = run(make, dtype, gradients=[np.ones(SHAPE)] * STEPS)
    np.testing.assert_allclose(master_of(optimizer, param), exact(0) - STEPS * 1e-5, rtol=0, atol=2e-6)


OTHERS = {
    "lamb": lambda p, **o: paddle.optimizer.Lamb(LEARNING_RATE, parameters=p, **o),
    "adagrad": lambda p: paddle.optimizer.Adagrad(LEARNING_RATE, parameters=p),
    "adamax": lambda p: paddle.optimizer.Adamax(LEARNING_RATE, parameters=p),
    "adadelta": lambda p: paddle.optimizer.Adadelta(LEARNING_RATE, parameters=p),
    "rmsprop": lambda p: paddle.optimizer.RMSProp(LEARNING_RATE, momentum=0.9, centered=True, parameters=p),
    "asgd": lambda p, **o: paddle.optimizer.ASGD(LEARNING_RATE, batch_num=3, parameters=p, **o),
    "radam": lambda p: paddle.optimizer.RAdam(LEARNING_RATE, parameters=p),
    "nadam": lambda p: paddle.optimizer.NAdam(LEARNING_RATE, parameters=p),
    "rprop": lambda p, **o: paddle.optimizer.Rprop(LEARNING_RATE, parameters=p, **o),
}


@pytest.mark.filterwarnings("ignore:Accumulating with FP16")
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_optimizer_moves_the_master_weights_as_float32_does(name, dtype):
    def make(params):
        optimizer = OTHERS[name](params)
        optimizer._multi_precision = (
            True  # half of them offer no argument for it; paddle.amp.decorate sets it
        )
        return optimizer

    param, optimizer = run(make, dtype)
    paddle.set_device("cpu")
    expected = float32(run(OTHERS[name], "float32")[0])
    # Rprop keeps its step sizes in the parameter's type.
    relative = 20 * HALF_UNIT[dtype] if name == "rprop" else 0.0
    moved = np.abs(expected - exact(0)).max()
    assert moved > 1e-4
    np.testing.assert_allclose(master_of(optimizer, param), expected, rtol=0, atol=relative * moved + 1e-6)


@pytest.mark.filterwarnings("ignore:Accumulating with FP16")
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_optimizer_trains_without_master_weights(name, dtype):
    got = float32(run(OTHERS[name], dtype, steps=3)[0])
    paddle.set_device("cpu")
    expected = float32(run(OTHERS[name], "float32", steps=3)[0])
    # Three roundings of weights below 8, and of the state they rest on.
    np.testing.assert_allclose(got, expected, rtol=0, atol=3 * 8 * HALF_UNIT[dtype] + 0.1 * LEARNING_RATE)
    assert np.abs(got - exact(0)).max() > 0


@pytest.mark.parametrize("dtype", ("float32", *LOW))
def test_state_dict_round_trip_continues_exactly(dtype, tmp_path):
    def fresh(values):
        param = parameter(values, dtype, name="weight")
        return param, adamw([param], multi_precision=True, amsgrad=True)

    def train(param, optimizer, steps):
        with paddle.utils.unique_name.guard():  # state is found again by name, as in a new process
            for step in steps:
                param.grad = paddle.to_tensor(gradient(step).astype("float32")).astype(dtype)
                optimizer.step()

    param, optimizer = fresh(exact(0))
    train(param, optimizer, range(5))
    paddle.save(optimizer.state_dict(), str(tmp_path / "weight.pdopt"))
    resumed, resumed_optimizer = fresh(float32(param))
    resumed_optimizer.set_state_dict(paddle.load(str(tmp_path / "weight.pdopt")))
    train(param, optimizer, range(5, 10))
    train(resumed, resumed_optimizer, range(5, 10))
    np.testing.assert_array_equal(float32(param), float32(resumed))
    if dtype != "float32":
        np.testing.assert_array_equal(
            master_of(optimizer, param), resumed_optimizer._master_weights["weight"].numpy()
        )


@pytest.mark.parametrize("dtype", LOW)
def test_clip_by_global_norm(dtype):
    def make(params):
        return momentum(params, multi_precision=True, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))

    param, optimizer = run(make, dtype, steps=1)
    norm = np.sqrt((gradient(0) ** 2).sum())
    assert norm > 1
    expected = exact(0) - LEARNING_RATE * gradient(0) / norm
    # The clipped gradient is rounded to 16 bits, and so may be its factor: 3 roundings.
    bound = 3 * 2 * HALF_UNIT[dtype] * np.abs(expected - exact(0)) + 1e-6
    assert np.all(np.abs(master_of(optimizer, param) - expected) <= bound)


@pytest.mark.parametrize("dtype", LOW)
def test_grad_scaler_skips_a_step_with_infinite_gradients(dtype):
    param = parameter(exact(0), dtype)
    optimizer = adamw([param], multi_precision=True)
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0, decr_every_n_nan_or_inf=1)

    def step(values):
        param.grad = paddle.to_tensor((values * 1024).astype("float32")).astype(dtype)
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()

    infinite = gradient(0)
    infinite[3, 4] = np.inf
    step(infinite)
    np.testing.assert_array_equal(float32(param), exact(0).astype("float32"))
    assert float(scaler._scale) == 512.0
    param.grad = paddle.to_tensor((gradient(0) * 512).astype("float32")).astype(dtype)
    scaler.step(optimizer)
    scaler.update()
    expected = AdamRule(0.1)(exact(0), gradient(0))
    np.testing.assert_allclose(master_of(optimizer, param), expected, rtol=0, atol=MASTER_TOLERANCE)


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
    """Row 3 is looked up twice in the first step, then never: it must not move in the steps after."""
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

def losses(dtype):
    main, startup = paddle.static.Program(), paddle.static.Program()
    paddle.set_default_dtype(dtype)
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [4, 8], "float32")
        start = paddle.nn.initializer.Constant(0.5)
        w = paddle.static.create_parameter([8, 8], dtype, default_initializer=start)
        loss = (paddle.matmul(x.astype(dtype), w).astype("float32") ** 2).mean()
        getattr(paddle.optimizer, sys.argv[1])(0.01, multi_precision=dtype != "float32").minimize(loss)
    executor = paddle.static.Executor(paddle.CustomPlace("npu", 0))
    executor.run(startup)
    feed = {"x": np.random.RandomState(1).randn(4, 8).astype("float32")}
    return [float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(6)]

paddle.enable_static()
paddle.set_device("npu")
reference = np.array(losses("float32"))
for dtype, relative in (("bfloat16", 2.0**-6), ("float16", 2.0**-9)):
    np.testing.assert_allclose(losses(dtype), reference, rtol=relative)
"""


@pytest.mark.parametrize("name", ("AdamW", "Adam", "Momentum", "SGD", "Lamb"))
def test_static_programs_train_master_weights(name, run_python):
    done = run_python("-m", "paddle_fused.virtual_npu", "-c", STATIC, name)
    assert done.returncode == 0, done.stderr[-2000:]


FORCED = """
import sys
import numpy as np
import paddle
from paddle_fused import virtual_npu

paddle.set_device("npu")
paddle.base.core.set_num_threads(int(sys.argv[1]))
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
np.save(sys.argv[2], np.concatenate(rows))
"""


def test_instruction_sets_and_thread_counts_agree(run_python, tmp_path):
    script = tmp_path / "adamw.py"
    script.write_text(FORCED)
    results = {}
    for isa in ("baseline", "avx2", "avx512"):
        for threads in (1, 2):
            out = tmp_path / f"{isa}{threads}.npy"
            done = run_python(
                "-m",
                "paddle_fused.virtual_npu",
                script,
                threads,
                out,
                PADDLE_FUSED_ISA=isa,
                OMP_NUM_THREADS=str(threads),
            )
            if "this machine offers only" in done.stderr:
                continue
            assert done.returncode == 0, done.stderr[-2000:]
            results[isa, threads] = np.load(out)
    for (isa, _), values in results.items():
        np.testing.assert_array_equal(values, results[isa, 1])  # whatever the number of threads
        # Fused multiply-add rounds once where the baseline rounds twice; 16-bit weights then fall either way.
        np.testing.assert_allclose(values, results["baseline", 1], rtol=2 * HALF_UNIT["bfloat16"], atol=1e-6)
