"""The four norms under one shape, for tests that are the same for all of them."""

import numpy as np
import paddle

from paddle_fused import add_rms_norm, dropout_add_layer_norm, dropout_add_rms_norm, rms_norm

EPSILON = 1e-5
INPUTS = {
    "rms_norm": ("x", "weight"),
    "add_rms_norm": ("x", "residual", "weight"),
    "dropout_add_layer_norm": ("x", "residual", "weight", "bias", "rowscale", "layerscale"),
    "dropout_add_rms_norm": ("x", "residual", "weight", "bias", "rowscale", "layerscale"),
}
NORMS = tuple(INPUTS)


def call(norm: str, t: dict, dropout: float = 0.0) -> list:
    """The differentiable outputs."""
    if norm == "rms_norm":
        return [rms_norm(t["x"], t["weight"], EPSILON)]
    if norm == "add_rms_norm":
        return list(add_rms_norm(t["x"], t["residual"], t["weight"], EPSILON))
    operator = dropout_add_layer_norm if norm == "dropout_add_layer_norm" else dropout_add_rms_norm
    results = operator(
        t["x"], t["residual"], t["weight"], t["bias"], dropout, EPSILON, t["rowscale"], t["layerscale"], True
    )
    return list(results)


def tensors(norm: str, shape, dtype="float32", place="cpu", seed=0) -> dict:
    """Its inputs, random, in ``dtype``, each wanting a gradient."""
    random = np.random.default_rng(seed)
    shapes = {"x": shape, "residual": shape, "rowscale": shape[:-1]}
    result = {}
    for name in INPUTS[norm]:
        array = np.asarray(random.standard_normal(shapes.get(name, shape[-1:])), np.float32)
        result[name] = paddle.to_tensor(array, place=place_of(place)).astype(dtype)
        result[name].stop_gradient = False
    return result


def place_of(name: str):
    return paddle.CustomPlace("npu", 0) if name == "npu" else paddle.CPUPlace()


def gradients(outputs: list, inputs: dict) -> list:
    """Of the outputs' sum, weighted so that no gradient is uniform."""
    weights = [
        paddle.linspace(-1.0, 2.0, o.size).reshape(o.shape).astype(o.dtype).to(o.place) for o in outputs
    ]
    return paddle.grad(outputs, list(inputs.values()), weights)
