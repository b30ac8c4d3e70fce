"""One training step of a decoder of one layer, made of this project's operators: FusedAdamW's, too.

The truth is the step of the composed operators in float64, and the noise floor theirs in float32, both on the
CPU place: the host's kernels on the virtual NPU may be twice as far from the truth, as in
``paddle_fused.parity``. Prints the figures as JSON.
"""

import json

from paddle_fused import parity

parity.use_an_npu()  # before paddle is imported
import numpy as np  # noqa: E402
import paddle  # noqa: E402

import paddle_fused  # noqa: E402
from paddle_fused import masks  # noqa: E402

TOKENS, HEADS, HEAD_DIM, INNER, VOCABULARY = 33, 4, 16, 96, 101
HIDDEN = HEADS * HEAD_DIM
SHAPES = {
    "embedding": (VOCABULARY, HIDDEN),
    "attention_norm": (HIDDEN,),
    "qkv": (HIDDEN, 3 * HIDDEN),
    "out": (HIDDEN, HIDDEN),
    "mlp_norm": (HIDDEN,),
    "gate_up": (HIDDEN, 2 * INNER),
    "down": (INNER, HIDDEN),
    "norm": (HIDDEN,),
    "head": (HIDDEN, VOCABULARY),
}


def drawn(random):
    """The weights: of the norms around 1, else such that activations stay around 1."""
    weights = {name: random.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in SHAPES.items()}
    return {name: weight if weight.ndim == 2 else 1 + weight for name, weight in weights.items()}


def rotary_table():
    angles = np.outer(np.arange(TOKENS), 1e4 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    both = np.concatenate([angles, angles], -1)
    return np.cos(both), np.sin(both)


def loss_of(weights, tokens, labels, cos, sin):
    x = paddle.nn.functional.embedding(tokens, weights["embedding"])
    qkv = paddle.matmul(paddle_fused.rms_norm(x, weights["attention_norm"]), weights["qkv"])
    query, key, value = (part.reshape([1, TOKENS, HEADS, HEAD_DIM]) for part in paddle.split(qkv, 3, axis=-1))
    query, key = paddle_fused.apply_rotary(query, key, cos, sin)
    attended = paddle_fused.flash_attention(query, key, value, masks.causal())
    x = x + paddle.matmul(attended.reshape([1, TOKENS, HIDDEN]), weights["out"])
    gate_up = paddle.matmul(paddle_fused.rms_norm(x, weights["mlp_norm"]), weights["gate_up"])
    x = x + paddle.matmul(paddle_fused.swiglu(gate_up), weights["down"])
    x = paddle_fused.rms_norm(x, weights["norm"])
    return paddle_fused.linear_cross_entropy(x, weights["head"], labels)


def step(backend: str, device: str, dtype: str) -> dict[str, np.ndarray]:
    """The loss, and the weights after the step."""
    paddle.device.set_device(device)
    random = np.random.default_rng(0)
    arrays = drawn(random)
    tokens, labels = (paddle.to_tensor(random.integers(0, VOCABULARY, (1, TOKENS))) for _ in range(2))
    cos, sin = (paddle.to_tensor(table.astype(np.float32)).astype(dtype) for table in rotary_table())
    weights = {}
    for name, array in arrays.items():
        weights[name] = paddle.create_parameter(list(array.shape), dtype)
        weights[name].set_value(paddle.to_tensor(array.astype(np.float32)).astype(dtype))
    optimizer = paddle_fused.FusedAdamW(1e-2, epsilon=1e-2, parameters=list(weights.values()))
    with paddle_fused.use_backend(backend, strict=True):
        loss = loss_of(weights, tokens, labels, cos, sin)
        loss.backward()
        optimizer.step()
    assert all(str(weight.place).startswith(f"Place({device[:3]}") for weight in weights.values())
    results = {"loss": loss, **weights}
    return {name: tensor.detach().cpu().numpy().astype(np.float64) for name, tensor in results.items()}


truth = step("composed", "cpu", "float64")
noise_floor = step("composed", "cpu", "float32")
reference = step("native", "npu:0", "float32")
report = {}
for name, right in truth.items():
    largest = np.abs(right).max()
    allowed = 2 * np.abs(noise_floor[name] - right).max() + parity.ROUNDING["float32"] * largest
    report[name] = {"error": float(np.abs(reference[name] - right).max()), "allowed": float(allowed)}
ran = sorted({entry.operator for entry in paddle_fused.dispatch_log() if entry.backend == "native"})
print(json.dumps({"environment": parity.environment(), "tensors": report, "native": ran}))
