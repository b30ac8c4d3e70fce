"""The gradients of ``x[item] = value``, in a process of its own, because Paddle's kernel may end it."""

import json

import pytest

# Small integers and sums of at most 30 of them are exact in every dtype, so all gradients must be exact.
PROGRAM = """
import json, sys
from llm_npu import device
place, dtype, patch = sys.argv[1:4]
device.select(place)
import numpy as np
import paddle
from llm_npu import patches
if patch == "patched":
    patches.apply()
    patches.apply()
paddle.set_device(place)
random = np.random.default_rng(0)
whole = slice(None)
rows = np.array([True, True, False, True, False, False])
cells = random.random([6, 5]) < 0.4
FORMS = {  # name -> the item for Paddle, for numpy, and the value's shape
    "mask": (lambda t: t(rows), rows, [3, 5, 4]),
    "mask of two dims": (lambda t: t(cells), cells, [int(cells.sum()), 4]),
    "mask, one row for all": (lambda t: t(cells), cells, [4]),
    "mask, one number for all": (lambda t: t(rows), rows, []),
    "mask, one element for all": (lambda t: t(rows), rows, [1]),
    "mask, one element of more dims": (lambda t: t(rows), rows, [1, 1, 1, 1]),
    "mask, broadcast inside": (lambda t: t(rows), rows, [3, 1, 4]),
    "mask, more dims": (lambda t: t(rows), rows, [1, 3, 5, 4]),
    "empty mask": (lambda t: t(rows & False), rows & False, [0, 5, 4]),
    "indices": (lambda t: t([4, -6, 2]), [4, 0, 2], [3, 5, 4]),
    "int32 indices": (lambda t: t([4, 0, 2]).astype("int32"), [4, 0, 2], [3, 5, 4]),
    "indices, more dims": (lambda t: t([4, 0, 2]), [4, 0, 2], [1, 1, 3, 5, 4]),
    "indices, one element of more dims": (lambda t: t([4, 0, 2]), [4, 0, 2], [1, 1, 1, 1]),
    "indices of two dims": (lambda t: (t([4, 0]), t([1, 3])), ([4, 0], [1, 3]), [2, 4]),
    "indices that broadcast": (lambda t: (t([[4], [0]]), t([1, 3])), ([[4], [0]], [1, 3]), [2, 2, 4]),
    "numpy indices": (lambda t: np.array([4, 0, 2]), [4, 0, 2], [3, 5, 4]),
    "list": (lambda t: [4, 0, 2], [4, 0, 2], [5, 4]),
    "second dim": (lambda t: (whole, t([3, 1])), (whole, [3, 1]), [6, 2, 4]),
    "last dim": (lambda t: (..., t([3, 1])), (..., [3, 1]), [6, 5, 2]),
    "slice and indices": (lambda t: (slice(1, 5, 2), t([3, 1])), (slice(1, 5, 2), [3, 1]), [2, 2, 4]),
    "number and indices": (lambda t: (2, t([3, 1]), whole), (2, [3, 1]), [2, 4]),
    "mask and indices": (lambda t: (t(rows), t([3, 1, 0])), (rows, [3, 1, 0]), [3, 4]),
}


def sum_to(gradient, shape):
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    shape = shape[len(shape) - gradient.ndim:]
    return gradient.sum(tuple(i for i, size in enumerate(shape) if size == 1), keepdims=True)


def differs(tensor, expected):
    return not np.array_equal(tensor.astype("float64").numpy().reshape(expected.shape), expected)


wrong = []
for name, (item, golden, shape) in FORMS.items():
    for frozen in (True, False):
        start, factor = (random.integers(-4, 5, [6, 5, 4]).astype(np.float64) for _ in range(2))
        number = random.integers(-4, 5, shape).astype(np.float64)
        x, value = paddle.to_tensor(start).astype(dtype), paddle.to_tensor(number).astype(dtype)
        x.stop_gradient, value.stop_gradient = frozen, False
        y = x * 1
        y[item(paddle.to_tensor)] = value
        (y.astype("float32") * paddle.to_tensor(factor, "float32")).sum().backward()
        expected, gradient = start.copy(), factor.copy()
        expected[golden] = number.reshape(shape[max(0, len(shape) - expected[golden].ndim):])
        gradient[golden] = 0
        if differs(y, expected) or (value.size and differs(value.grad, sum_to(factor[golden], shape))):
            wrong.append(name)
        elif not frozen and differs(x.grad, gradient):
            wrong.append(f"{name}, x")
print(json.dumps(wrong))
"""
ACCUMULATED = """
import sys
from llm_npu import device
device.select(sys.argv[1])
import paddle
from llm_npu import patches
patches.apply()
paddle.set_device(sys.argv[1])
for dtype in sys.argv[2:]:
    x, value = paddle.ones([3, 2], dtype), paddle.full([3, 2], 2.0, dtype)
    value.stop_gradient = False
    index = paddle.to_tensor([2, 0, 2])
    added = paddle.index_put(x * 1, (index,), value, accumulate=True).astype("float32")
    y = x * 1
    y[index] *= value
    y = y.astype("float32")
    (added + y * 2).sum().backward()
    print(added.sum().item(), y.sum().item(), value.grad.astype("float32").tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("place", ["cpu", "npu"])
def test_gradients_are_exact(run_python, place, dtype):
    done = run_python("-c", PROGRAM, place, dtype, "patched")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "dtypes"), [("cpu", ["bfloat16", "float64"]), ("npu", ["bfloat16", "float16"])]
)
def test_accumulated_values(run_python, place, dtypes):
    # Paddle's CPU kernel loses additions on several threads.
    threads = {"cpu": "1", "npu": "2"}[place]
    done = run_python("-c", ACCUMULATED, place, *dtypes, OMP_NUM_THREADS=threads)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["18.0 10.0 [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]"] * 2
