"""one_hot_v2, the operator of older programs."""

import numpy as np
import paddle
import pytest

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
def test_rows(id_dtype, dtype):
    """one_hot_v2 chooses the dtype of its result; it too gives zeros for an id that is out of range."""
    ids = paddle.to_tensor([[0, -1, 9], [2, 3, 1]], id_dtype)
    number = int(getattr(paddle.base.core.VarDesc.VarType, {"float32": "FP32"}.get(dtype, dtype.upper())))
    out = paddle._legacy_C_ops.one_hot_v2(ids, "depth", 3, "dtype", number, "allow_out_of_range", False)
    assert out.dtype == getattr(paddle, dtype)
    np.testing.assert_array_equal(out.numpy(), ids.numpy()[..., None] == np.arange(3))
