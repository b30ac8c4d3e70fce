"""Cases of dropout_add_layer_norm and dropout_add_rms_norm without randomness: dropout 0 and 1."""

import functools

import numpy as np

from ..case import OpCase
from .op import dropout_add_layer_norm, dropout_add_rms_norm

EPSILON = 1e-5
OPTIONAL = ("residual", "bias", "rowscale", "layerscale")


def golden(arrays, is_rms: bool, factors=1.0):
    """(out, pre) in float64, for a dropout that multiplies by ``factors``."""
    z = arrays["x0"] * factors
    if "rowscale" in arrays:
        z = z * arrays["rowscale"][..., None]
    if "layerscale" in arrays:
        z = z * arrays["layerscale"]
    if "residual" in arrays:
        z = z + arrays["residual"]
    centred = z if is_rms else z - z.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    return normal * arrays["weight"] + arrays.get("bias", 0.0), z


def arrays(random, shape, has):
    """x0 and weight, and the tensors of OPTIONAL that are in ``has``."""
    shapes = {"residual": shape, "bias": shape[-1:], "rowscale": shape[:-1], "layerscale": shape[-1:]}
    return {
        "x0": random.standard_normal(shape),
        "weight": random.uniform(0.5, 1.5, shape[-1:]),
        **{name: _away_from_zero(random, shapes[name]) for name in has},
    }


def _away_from_zero(random, shape):
    # If a row is scaled to almost zero, the norm amplifies every rounding.
    return np.asarray(random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape))


def _case(operator, *shape: int, has=OPTIONAL, dropout=0.0, keep_float32=(), in_fp32=False) -> OpCase:
    is_rms = operator is dropout_add_rms_norm
    words = [f"x0 {list(shape)}", *has, f"dropout {dropout:g}" if dropout else ""]
    words += [f"float32 {name}" for name in keep_float32] + ["residual_in_fp32"] * in_fp32

    def call(t):
        return operator(
            t["x0"], t.get("residual"), t["weight"], t.get("bias"), dropout, EPSILON,
            t.get("rowscale"), t.get("layerscale"), prenorm=True, residual_in_fp32=in_fp32,
        )  # fmt: skip

    return OpCase(
        operator=operator.__name__,
        name=", ".join(filter(None, words)),
        arrays=lambda random: arrays(random, shape, has),
        call=call,
        golden=lambda a: golden(a, is_rms, 1.0 - dropout),
        gradients=("x0", "weight", *has),
        keep_float32=keep_float32,
    )


CASES = [
    case
    for operator in (dropout_add_layer_norm, dropout_add_rms_norm)
    for case in (
        _case(operator, 3, 5, 64),
        _case(operator, 70, 513),
        _case(operator, 33),
        _case(operator, 2, 7, 40, has=()),
        _case(operator, 2, 7, 40, has=("residual",)),
        _case(operator, 2, 7, 40, has=("residual", "bias")),
        _case(operator, 2, 7, 40, has=("rowscale",)),
        _case(operator, 2, 7, 40, has=("layerscale",)),
        _case(operator, 4, 24, has=("residual", "bias"), dropout=1.0),
        _case(operator, 3, 5, 65, keep_float32=("weight", "bias")),
        _case(operator, 3, 5, 65, keep_float32=("residual",)),
        _case(operator, 3, 5, 65, has=("residual", "rowscale"), in_fp32=True),
        _case(operator, 3, 5, 65, has=(), in_fp32=True),
    )
]


def _random_case(operator, random) -> OpCase:
    leading = random.integers(0, 5, random.integers(0, 4)).tolist()
    # In short rows, elements may be so close that the layer norm amplifies the rounding of `pre`.
    width = int(random.integers(8, 80))
    has = tuple(name for name in OPTIONAL if random.integers(2))
    if "residual" not in has:
        # The norm cancels the scale of a row, so rowscale's gradient consists of rounding errors of canceling
        # terms. With the huge weights of random calls, it is arbitrary.
        has = tuple(name for name in has if name != "rowscale")
    float32 = tuple(name for name in ("residual", "weight") if random.integers(4) == 0)
    float32 += ("bias",) * ("weight" in float32)
    return _case(operator, *leading, width, has=has, keep_float32=float32, in_fp32=bool(random.integers(2)))


RANDOM_CASE = {
    operator.__name__: functools.partial(_random_case, operator)
    for operator in (dropout_add_layer_norm, dropout_add_rms_norm)
}
