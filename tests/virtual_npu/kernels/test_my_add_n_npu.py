"""my_add_n: X + Y + Z."""

import custom_operator
import numpy as np
import pytest
from precision import npu


def test_sum():
    x, y, z = (npu(np.full((2, 3), value), "float32") for value in (1.0, 2.0, 4.0))
    np.testing.assert_array_equal(custom_operator.run("my_add_n", x, y, z)[0].numpy(), np.full((2, 3), 7.0))


def test_bad_input():
    x = npu(np.ones((2, 3)), "float32")
    for arguments, message in (
        ((x, x.cpu(), x), "Y is on cpu"),
        ((x, x, x.astype("bfloat16")), r"Z is bfloat16 of shape \[2, 3\] and X float32"),
        ((x, x[0], x), r"Y is float32 of shape \[3\] and X .*; accepted: the same dtype and shape"),
    ):
        with pytest.raises(ValueError, match=f"my_add_n: .*{message}"):
            custom_operator.run("my_add_n", *arguments)
