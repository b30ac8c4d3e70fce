"""Cases of fused_adamw: one step of one parameter."""

import numpy as np
import paddle

from ..case import FLOATS, OpCase
from .op import Settings, State, adamw_step

STEP, RATE = 3, 1e-2


def golden(a: dict, settings: Settings) -> tuple[np.ndarray, ...]:
    """The parameter and the moments after the step, in float64."""
    s, g = settings, -a["grad"] if settings.maximize else a["grad"]
    m = s.beta1 * a["moment1"] + (1 - s.beta1) * g
    v = s.beta2 * a["moment2"] + (1 - s.beta2) * g * g
    largest = np.maximum(a["moment2_max"], v) if "moment2_max" in a else v
    denominator = np.sqrt(largest / (1 - s.beta2**STEP)) + s.epsilon
    weight = a["master"] if "master" in a else a["param"]
    rate = RATE * s.lr_ratio
    weight = weight - rate * (s.weight_decay * weight + m / (1 - s.beta1**STEP) / denominator)
    after = (weight, m, v)
    return (*after, largest) if "moment2_max" in a else after


def _call(tensors, settings: Settings) -> tuple:
    updated = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    param, grad = updated.pop("param"), updated.pop("grad")
    dtype = param.dtype if param.dtype == paddle.float64 else paddle.float32
    place = paddle.CPUPlace()  # where Paddle's optimizers store the powers
    powers = [paddle.to_tensor([beta**STEP], dtype, place) for beta in (settings.beta1, settings.beta2)]
    rate = paddle.to_tensor([RATE], dtype)
    with paddle.no_grad():
        adamw_step(param, grad, State(rate, beta1_pow=powers[0], beta2_pow=powers[1], **updated), settings)
    weight = updated.get("master", param)
    return (weight, *(updated[name] for name in ("moment1", "moment2", "moment2_max") if name in updated))


def _case(name: str, shape: tuple, *extra: str, dtypes=FLOATS, **settings) -> OpCase:
    hyperparameters = Settings(**settings)

    def arrays(random):
        tensors_ = {name: random.standard_normal(shape) for name in ("param", "grad", "moment1", *extra)}
        squares = ("moment2", *(name for name in extra if name == "moment2_max"))
        return tensors_ | {name: random.uniform(0, 2, shape) for name in squares}

    return OpCase(
        operator="fused_adamw",
        name=f"{name}, {list(shape)}",
        arrays=arrays,
        call=lambda tensors: _call(tensors, hyperparameters),
        golden=lambda a: golden(a, hyperparameters),
        gradients=(),
        dtypes=dtypes,
        keep_float32=("moment1", "moment2", "moment2_max", "master"),
    )


_LOW = ("bfloat16", "float16")
CASES = [
    _case("plain", (37, 21)),
    _case("no decay, another rate", (1030,), weight_decay=0.0, lr_ratio=0.5),
    _case("amsgrad, going up", (3, 5), "moment2_max", maximize=True),
    _case("master weights", (37, 21), "master", dtypes=_LOW),
    _case("master weights and amsgrad", (513,), "master", "moment2_max", dtypes=_LOW),
]


def _random_case(random) -> OpCase:
    shape = tuple(int(size) for size in random.integers(0, 40, random.integers(0, 3)))
    extra = ("moment2_max",) if random.random() < 0.3 else ()
    dtypes = _LOW if random.random() < 0.3 else (*_LOW, "float32")
    if dtypes is _LOW:
        extra = ("master", *extra)
    settings = {"weight_decay": float(random.choice([0.0, 0.1])), "maximize": bool(random.random() < 0.3)}
    return _case("random", shape, *extra, dtypes=dtypes, **settings)


RANDOM_CASE = {"fused_adamw": _random_case}
