"""Optimizers on npu against their update rules in float64; 16-bit parameters follow master weights."""

import numpy as np
import paddle
import pytest
from optimizer_rules import (
    HALF_UNIT,
    LEARNING_RATE,
    LOW,
    MASTER_TOLERANCE,
    RULES,
    SHAPE,
    STEPS,
    AdamRule,
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
def test_float32_follows_the_rule_and_where_the_kernel_is_paddles_equals_the_cpu_place(name):
    make, rule = RULES[name]
    on_device = float32(run(make, "float32")[0])
    np.testing.assert_allclose(on_device, golden(rule()), rtol=0, atol=MASTER_TOLERANCE)
    if name.startswith("adamw"):
        return  # the kernel of 16 bits, in one pass on all threads: rounded elsewhere
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
    """As with amp_master_grad: digits beyond 16 bits still reach the master weights."""
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
