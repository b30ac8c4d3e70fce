"""How accurate an operator must be, and the tensors to measure it with.

The truth is computed in float64 from the very values that the operator got (already rounded to its dtype).
The noise floor is the same computation composed of plain Paddle operators in the operator's own dtype: a
fused operator may be at most twice as far from the truth, plus one rounding of the result.
"""

from collections.abc import Callable, Sequence

import numpy as np
import paddle

from paddle_fused.parity import ROUNDING

DTYPES = ("float32", "bfloat16", "float16")


def npu(array: np.ndarray, dtype: str, requires_grad: bool = True) -> paddle.Tensor:
    """`array` on the npu, rounded to `dtype`."""
    tensor = paddle.to_tensor(np.asarray(array, np.float32), place=paddle.CustomPlace("npu", 0)).astype(dtype)
    tensor.stop_gradient = not requires_grad
    return tensor


def values(tensor: paddle.Tensor) -> np.ndarray:
    """The tensor's values in float64 (exact for float32, bfloat16 and float16)."""
    return tensor.astype("float32").numpy().astype(np.float64)


def bits(tensor: paddle.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def assert_as_accurate_as_composed(fused, composed, truth: np.ndarray, what: str) -> None:
    """Largest error of `fused` <= 2 x largest error of `composed` + one rounding of the largest value."""
    if truth.size == 0:
        assert tuple(fused.shape) == truth.shape
        return
    error = np.abs(values(fused) - truth).max()
    noise_floor = np.abs(values(composed) - truth).max()
    rounding = ROUNDING[str(fused.dtype).removeprefix("paddle.")] * np.abs(truth).max()
    assert error <= 2 * noise_floor + rounding, (
        f"{what}: {error:.3e}, composed {noise_floor:.3e}, rounding {rounding:.3e}"
    )


def assert_is_gradient(
    loss: Callable[..., float], inputs: Sequence[np.ndarray], gradients: Sequence[np.ndarray], seed: int = 0
) -> None:
    """The float64 `gradients` agree with central differences of the float64 `loss` along random directions.

    With a step of 1e-5 the truncation (1e-10) and the cancellation (1e-16 / 1e-5) both stay far below 1e-6.
    """
    random = np.random.default_rng(seed)
    step = 1e-5
    for position, (array, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        for _ in range(3):
            direction = random.standard_normal(array.shape)
            ahead, behind = list(inputs), list(inputs)
            ahead[position], behind[position] = array + step * direction, array - step * direction
            difference = (loss(*ahead) - loss(*behind)) / (2 * step)
            scale = np.linalg.norm(gradient) * np.linalg.norm(direction) + 1e-12
            assert abs(difference - np.vdot(gradient, direction)) <= 1e-6 * scale, f"input {position}"


def with_threads(count: int, compute: Callable[[], list[paddle.Tensor]]) -> list[bytes]:
    """The bits of what `compute` returns when the host kernels run on `count` threads."""
    paddle.base.core.set_num_threads(count)
    try:
        return [bits(tensor) for tensor in compute()]
    finally:
        paddle.base.core.set_num_threads(2)
