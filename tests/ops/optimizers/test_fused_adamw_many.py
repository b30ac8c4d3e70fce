"""FusedAdamW's batched step of many parameters: the same bits as one call for each."""

import numpy as np
import paddle
import pytest
from precision import bits, with_threads

import paddle_fused
from paddle_fused import FusedAdamW, native
from paddle_fused.ops.fused_adamw import op as adamw

pytestmark = pytest.mark.sampled

SHAPES = [(3,), (64, 65), (1,), (7, 3), (130, 257)]
NAMES = ("moment1", "moment2", "beta1_pow", "beta2_pow")


def parameters(dtypes):
    random = np.random.default_rng(0)
    created = []
    for shape, dtype in zip(SHAPES, dtypes, strict=True):
        zero = paddle.nn.initializer.Constant(0.0)
        parameter = paddle.create_parameter(list(shape), dtype, default_initializer=zero)
        parameter.set_value(paddle.to_tensor(random.standard_normal(shape), "float32").astype(dtype))
        parameter.optimize_attr["learning_rate"] = 0.5 if len(shape) == 1 else 1.0
        created.append(parameter)
    return created


def train(dtypes, one_by_one, monkeypatch):
    """The bits of parameters and moments after three steps, and what ran."""
    if one_by_one:
        monkeypatch.setattr(adamw, "_steps", lambda calls: [adamw.ADAMW(*call) for call in calls])
    params = parameters(dtypes)
    optimizer = FusedAdamW(
        0.01,
        parameters=params,
        weight_decay=0.1,
        multi_precision=True,
        amsgrad=True,
        apply_decay_param_fun=lambda name: name != params[1].name,
        lr_ratio=lambda parameter: 0.25 if parameter is params[3] else 1.0,
    )
    random = np.random.default_rng(1)
    paddle_fused.reset_dispatch_log()
    for _ in range(3):
        for parameter in params:
            gradient = random.standard_normal(parameter.shape)
            parameter.grad = paddle.to_tensor(gradient, "float32").astype(parameter.dtype)
        optimizer.step()
    ran = [(ran.backend, ran.dtype, ran.count) for ran in paddle_fused.dispatch_log()]
    state = [tensor for name, tensor in sorted(optimizer.state_dict().items()) if hasattr(tensor, "numpy")]
    return params + state, ran


@pytest.mark.parametrize("place", ["cpu", "npu:0"])
@pytest.mark.parametrize(
    "dtypes",
    [("float32",) * 5, ("bfloat16", "float32", "float16", "bfloat16", "float32")],
    ids=["one", "mixed"],
)
def test_together_as_one_by_one(place, dtypes, monkeypatch):
    paddle.set_device(place)
    with paddle_fused.use_backend("native", strict=True):
        together, ran = train(dtypes, False, monkeypatch)
        alone, ran_alone = train(dtypes, True, monkeypatch)
    assert list(map(bits, together)) == list(map(bits, alone))
    assert sorted(ran) == sorted(ran_alone)
    assert sum(count for _, _, count in ran) == 3 * len(SHAPES)


def test_parameters_of_several_backends_in_one_step():
    """float64 runs composed; the others are batched."""
    paddle.set_device("cpu")
    params = parameters(("float32", "float64", "float32", "float64", "float32"))
    before = [parameter.numpy().copy() for parameter in params]
    optimizer = FusedAdamW(0.01, parameters=params)
    for parameter in params:
        parameter.grad = paddle.ones_like(parameter)
    paddle_fused.reset_dispatch_log()
    optimizer.step()
    counts = {(ran.backend, ran.dtype): ran.count for ran in paddle_fused.dispatch_log()}
    assert counts == {("native", "float32"): 3, ("composed", "float64"): 2}
    assert all((parameter.numpy() < old).all() for parameter, old in zip(params, before, strict=True))


def test_nothing_is_updated_where_one_parameter_is_refused():
    paddle.set_device("cpu")
    params = parameters(("float32", "float64", "float32", "float32", "float32"))
    before = list(map(bits, params))
    optimizer = FusedAdamW(0.01, parameters=params)
    for parameter in params:
        parameter.grad = paddle.ones_like(parameter)
    with paddle_fused.use_backend("native", strict=True), pytest.raises(ValueError, match="float64"):
        optimizer.step()
    assert list(map(bits, params)) == before


def test_same_bits_for_any_number_of_threads(monkeypatch):
    paddle.set_device("npu:0")
    with paddle_fused.use_backend("native", strict=True):
        assert (
            len(
                {
                    tuple(with_threads(n, lambda: train(("float32",) * 5, False, monkeypatch)[0]))
                    for n in (1, 2)
                }
            )
            == 1
        )


def test_lists_of_different_lengths_are_refused():
    paddle.set_device("cpu")
    ones = [paddle.ones([2]) for _ in range(2)]
    power = [paddle.full([1], 0.9) for _ in range(2)]
    numbers = (0.1, 0.001, 1e-8, 1.0, 0.0, False)
    with pytest.raises(ValueError, match=r"grads has 1 .*params 2"):
        native.call(
            "pf_adamw_many_", ones, ones[:1], paddle.ones([1]), ones, ones, None, power, power, None, *numbers
        )


NUMBERS = (0.1, 0.001, 1e-8, 1.0, 0.0, False)
BAD = {
    "grads": lambda: paddle.ones([3]),
    "moments1": lambda: paddle.ones([2], "float64"),
    "moments2": lambda: paddle.ones([2, 1]),
    "beta1_pows": lambda: paddle.ones([2]),
    "beta2_pows": lambda: paddle.ones([1], "float64"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_tensor_at_the_end_leaves_all_untouched(name):
    paddle.set_device("cpu")
    lists = {
        of: [paddle.full([2], 0.5) for _ in range(4)] for of in ("params", "grads", "moments1", "moments2")
    }
    lists |= {of: [paddle.full([1], 0.9) for _ in range(4)] for of in ("beta1_pows", "beta2_pows")}
    lists[name][-1] = BAD[name]()
    before = {of: list(map(bits, tensors)) for of, tensors in lists.items()}
    with pytest.raises(ValueError, match="accepted"):
        native.call(
            "pf_adamw_many_", lists["params"], lists["grads"], paddle.ones([1]), lists["moments1"],
            lists["moments2"], None, lists["beta1_pows"], lists["beta2_pows"], None, *NUMBERS,
        )  # fmt: skip
    assert {of: list(map(bits, tensors)) for of, tensors in lists.items()} == before
