"""FusedAdamW in training programs: state dicts, loss scaling, captured programs, refusals."""

import numpy as np
import paddle
import pytest
from fused_adamw_training import in_float32, train, weights_of
from optimizer_rules import LEARNING_RATE, MASTER_TOLERANCE, SHAPE, exact, parameter

import paddle_fused
from paddle_fused import FusedAdamW, dispatch_log, reset_dispatch_log
from paddle_fused.compat import npu_apply_fused_adamw_v2

pytestmark = pytest.mark.sampled

# ---- states, scaling, programs


@pytest.mark.parametrize(
    ("before", "after"),
    [(FusedAdamW, paddle.optimizer.AdamW), (paddle.optimizer.AdamW, FusedAdamW), (FusedAdamW, FusedAdamW)],
    ids=lambda cls: cls.__module__.partition(".")[0],
)
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_resumes_what_the_other_has_saved(dtype, options, before, after, tmp_path, on_npu):
    options = {**options, "multi_precision": dtype != "float32"}
    straight = train(after, dtype, steps=20, **options)
    param, optimizer = train(before, dtype, steps=10, **options)
    paddle.save(optimizer.state_dict(), str(tmp_path / "state.pdopt"))
    resumed = train(
        after, dtype, steps=10, first=10,
        resume=(paddle.load(str(tmp_path / "state.pdopt")), in_float32(param)), **options,
    )  # fmt: skip
    assert optimizer.state_dict().keys() == resumed[1].state_dict().keys()
    tolerance = 0 if before is after else MASTER_TOLERANCE
    np.testing.assert_allclose(weights_of(*resumed), weights_of(*straight), rtol=0, atol=tolerance)


def test_a_resumed_run_on_the_host_is_the_same_bit_for_bit(on_cpu):
    param, optimizer = train(FusedAdamW, steps=10)
    state = {name: value.clone() for name, value in optimizer.state_dict().items()}
    resumed = train(FusedAdamW, steps=10, first=10, resume=(state, in_float32(param)))
    np.testing.assert_array_equal(in_float32(resumed[0]), in_float32(train(FusedAdamW, steps=20)[0]))


def test_a_changed_beta_is_not_taken_for_another_step(on_cpu):
    """After 10 steps with beta2 0.99 the stored power is not a power of 0.95: it is used unchanged."""
    param, optimizer = train(FusedAdamW, steps=10, beta2=0.99)
    trained = []
    for cls in (FusedAdamW, paddle.optimizer.AdamW):
        state = {name: value.clone() for name, value in optimizer.state_dict().items()}
        trained.append(train(cls, steps=5, first=10, beta2=0.95, resume=(state, in_float32(param)))[0])
    np.testing.assert_allclose(in_float32(trained[0]), in_float32(trained[1]), atol=1e-6)


def test_grad_scaler_skips_an_infinite_gradient(on_npu):
    param = parameter(exact(0), "float16")
    optimizer = FusedAdamW(LEARNING_RATE, parameters=[param], multi_precision=True)
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1)
    for factor, moves in ((float("inf"), False), (1.0, True)):
        before = param.numpy()
        with paddle.amp.auto_cast(dtype="float16"):  # else Paddle switches the scaler off
            loss = scaler.scale((param * factor).sum())
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        assert (param.numpy() != before).any() == moves


def test_with_a_captured_forward_pass(device):
    weights = []
    for captured in (False, True):
        with paddle.utils.unique_name.guard():
            layer = paddle.nn.Linear(4, 4)
            layer.weight.set_value(np.eye(4, dtype="float32"))
            forward = paddle.jit.to_static(layer, full_graph=True) if captured else layer
            optimizer = FusedAdamW(LEARNING_RATE, parameters=layer.parameters())
            for _ in range(3):
                (forward(paddle.ones([2, 4])) ** 2).mean().backward()
                optimizer.step()
                optimizer.clear_grad()
        weights.append(layer.weight.numpy())
    np.testing.assert_array_equal(*weights)


STATIC = """
import numpy as np
import paddle
import paddle_fused

def losses(make, device):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [4, 8], "float32")
        start = paddle.nn.initializer.Constant(0.5)
        weight = paddle.static.create_parameter([8, 8], "float32", default_initializer=start)
        loss = (paddle.matmul(x, weight) ** 2).mean()
        make(0.01, weight_decay=0.1).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace() if device == "cpu" else paddle.CustomPlace("npu", 0))
    executor.run(startup)
    feed = {"x": np.random.RandomState(1).randn(4, 8).astype("float32")}
    return [float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(6)]

paddle.enable_static()
for device in ("cpu", "npu:0"):
    paddle.set_device(device)
    paddle_fused.reset_dispatch_log()
    fused, upstream = (losses(make, device) for make in (paddle_fused.FusedAdamW, paddle.optimizer.AdamW))
    np.testing.assert_allclose(fused, upstream, rtol=1e-5, err_msg=device)
    print(device, *(ran.backend for ran in paddle_fused.dispatch_log()))
"""


@pytest.mark.slow
def test_static_programs_train(run_python):
    done = run_python("-m", "virtual_npu", "-c", STATIC)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == ["cpu native", "npu:0 ascend"]


# ---- in place of an optimizer that a library has made


def adamw(cls=paddle.optimizer.AdamW, **options):
    """An optimizer of a layer with settings unlike the defaults; its bias does not decay."""
    with paddle.utils.unique_name.guard():
        layer = paddle.nn.Linear(4, 4)
        layer.weight.set_value(np.eye(4, dtype="float32"))
        optimizer = cls(
            learning_rate=paddle.optimizer.lr.LinearWarmup(0.1, 4, 0.01, 0.1), beta1=0.8, beta2=0.9,
            epsilon=1e-4, parameters=layer.parameters(), weight_decay=0.3,
            apply_decay_param_fun=lambda name: name == layer.weight.name,
            grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5), **options,
        )  # fmt: skip
    return layer, optimizer


def stepped(layer, optimizer) -> list[np.ndarray]:
    for _ in range(3):
        (layer(paddle.ones([2, 4])) ** 2).mean().backward()
        optimizer.step()
        optimizer._learning_rate.step()
        optimizer.clear_grad()
    return [layer.weight.numpy(), layer.bias.numpy()]


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}], ids=str)
def test_from_adamw_keeps_every_setting(options, on_npu):
    layer, upstream = adamw(**options)
    expected = stepped(layer, upstream)
    layer, other = adamw(**options)
    actual = stepped(layer, FusedAdamW.from_adamw(other))
    for before, another in zip(expected, actual, strict=True):
        np.testing.assert_allclose(another, before, rtol=0, atol=0 if not options else 1e-6)


def test_from_adamw_refuses_what_it_would_change(on_cpu):
    with pytest.raises(ValueError, match=r"is a FusedAdamW; accepted: a paddle\.optimizer\.AdamW"):
        FusedAdamW.from_adamw(adamw(FusedAdamW)[1])
    layer, optimizer = adamw()
    stepped(layer, optimizer)
    with pytest.raises(ValueError, match=r"from_adamw: .*states"):
        FusedAdamW.from_adamw(optimizer)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_example_steps_are_dispatched_like_the_steps(dtype, device):
    param, optimizer = train(FusedAdamW, dtype, steps=0, multi_precision=True)
    (example,) = optimizer.example_steps([param])
    report = paddle_fused.explain_dispatch(example)
    param.grad = paddle.ones_like(param)
    reset_dispatch_log()
    optimizer.step()
    (ran,) = dispatch_log()
    assert (ran.backend, ran.mode) == (report.chosen, report.support[report.chosen].mode)


# ---- what runs, what is refused


def test_what_runs_on_npu(on_npu):
    reset_dispatch_log()
    train(FusedAdamW, steps=2)
    train(FusedAdamW, steps=3, amsgrad=True)
    modes = [(ran.backend, ran.mode, ran.count) for ran in dispatch_log()]
    assert modes[0][0] == modes[1][0] == "ascend"
    assert "ApplyAdamD" in modes[0][1] and modes[0][2] == 2
    assert modes[1][1].startswith("composition ") and "amsgrad" in modes[1][1] and modes[1][2] == 3


def test_sparse_gradients_are_refused(on_cpu):
    table = paddle.nn.Embedding(4, 2, sparse=True)
    optimizer = FusedAdamW(parameters=table.parameters())
    table(paddle.to_tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"FusedAdamW: the gradient of .* is sparse"):
        optimizer.step()


def test_bad_arguments(on_cpu):
    param = parameter(exact(0), "float32")
    with pytest.raises(ValueError, match=r"lr_ratio is 0\.5; accepted: a function"):
        FusedAdamW(parameters=[param], lr_ratio=0.5)
    with pytest.raises(ValueError, match="beta1"):
        FusedAdamW(parameters=[param], beta1=1.5)
    optimizer = FusedAdamW(parameters=[parameter(np.ones(SHAPE), "complex64")])
    optimizer._parameter_list[0].grad = paddle.ones(SHAPE, "complex64")
    with pytest.raises(ValueError, match="is complex64; accepted: float32"):
        optimizer.step()


def test_a_view_is_updated_in_place(on_cpu):
    """Paddle passes a copy of it to a custom operator, so another backend must run the step."""
    moments = paddle.zeros([4, 2])
    param, grad = paddle.ones([4]), paddle.ones([4])
    reset_dispatch_log()
    npu_apply_fused_adamw_v2(param, grad, moments[:, 0], moments[:, 1], None, 1)
    (ran,) = dispatch_log()
    assert ran.backend == "composed" and "would update a copy" in ran.refused["native"]
    np.testing.assert_allclose(moments.numpy(), np.tile([0.1, 0.001], (4, 1)), rtol=1e-6)
    np.testing.assert_allclose(param.numpy(), 0.999, rtol=1e-6)


def test_the_host_operator_checks_its_memory(on_cpu):
    ones, scalar = paddle.ones([4]), paddle.ones([1])
    numbers = (0.1, 0.001, 1e-8, 1.0, 0.0, False)

    def run(param=ones, grad=ones, moment=ones, power=scalar):
        arguments = (param, grad, scalar, moment, ones, None, power, scalar, None)
        paddle._C_ops._run_custom_op("pf_adamw_", *arguments, *numbers)

    train(FusedAdamW, steps=1)  # loads the operators
    for arguments, message in (
        ({"grad": paddle.ones([5])}, r"grad has shape \[5\] and param \[4\]"),
        ({"moment": paddle.ones([4], "float64")}, "moment1 is float64; accepted: float32"),
        ({"power": paddle.ones([2])}, r"beta1_pow has shape \[2\]"),
        ({"grad": paddle.ones([4]).to("npu:0")}, "grad is on npu:0"),
    ):
        with pytest.raises(ValueError, match=message):
            run(**arguments)
