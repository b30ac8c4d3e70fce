"""The expected results of collectives, computed with numpy: terms are added in rank order."""

from __future__ import annotations

import numpy as np
import paddle

WHOLE = ("int8", "uint8", "int16", "int32", "int64")
REAL = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
DTYPES = (*WHOLE, *REAL, *COMPLEX, "bool")
# Paddle itself does not split tensors of the others into the lists that some functions take.
IN_LISTS = tuple(dtype for dtype in DTYPES if dtype not in ("int16", *COMPLEX))

# Paddle knows averages for NCCL only.
OPERATIONS = {
    **dict.fromkeys((*WHOLE, *REAL), ("SUM", "MAX", "MIN", "PROD")),
    **dict.fromkeys(COMPLEX, ("SUM", "PROD")),
    "bool": ("SUM", "MAX", "MIN", "PROD"),
}


def values(rank: int, size: int, dtype: str, seed: int = 0) -> np.ndarray:
    """``size`` numbers of a rank, representable in ``dtype``, in the numpy type of ``computed_in``."""
    random = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return random.random(size) < 0.5
    if dtype in WHOLE:
        return random.integers(0 if dtype == "uint8" else -9, 10, size).astype(dtype)
    if dtype in COMPLEX:
        return (random.standard_normal(size) + 1j * random.standard_normal(size)).astype(dtype)
    return rounded(random.standard_normal(size).astype(computed_in(dtype)), dtype)


def computed_in(dtype: str) -> str:
    """16-bit numbers are summed in float32."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """``array`` with every number rounded to ``dtype``, to nearest even."""
    if dtype == "float16":
        return array.astype("float16").astype("float32")
    if dtype == "bfloat16":
        bits = array.astype("float32").view("uint32")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view("float32")
    return array.astype(dtype)


def reduced(terms: list[np.ndarray], operation: str, dtype: str) -> np.ndarray:
    """``terms[0] op terms[1] op ...``, rounded once."""
    combine = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
    total = terms[0]
    for term in terms[1:]:
        total = combine[operation](total, term)
    return rounded(total, dtype)


def tensor(array: np.ndarray, dtype: str) -> paddle.Tensor:
    """On the current device; exact if ``array`` is representable in ``dtype``."""
    result = paddle.to_tensor(array)
    return result if str(result.dtype) == f"paddle.{dtype}" else result.astype(dtype)


def array(tensor: paddle.Tensor) -> np.ndarray:
    """The tensor's numbers, in the numpy type of ``computed_in``."""
    dtype = str(tensor.dtype).removeprefix("paddle.")
    return tensor.astype(computed_in(dtype)).numpy() if computed_in(dtype) != dtype else tensor.numpy()


def assert_equal(actual: paddle.Tensor, expected: np.ndarray) -> None:
    """Bit by bit, except for products of complex numbers, where numpy may round in another order."""
    if expected.dtype.kind == "c":
        np.testing.assert_allclose(array(actual), expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(array(actual), expected)
