"""npu_fusion_attention's arguments: accepted forms, and errors with its own names."""

import numpy as np
import paddle
import pytest

from paddle_fused import flash_attention
from paddle_fused.compat import npu_fusion_attention

pytestmark = pytest.mark.sampled

ENDS = [2, 5]
FORMS = {
    "tuple": tuple,
    "int64 tensor": paddle.to_tensor,
    "int32 tensor": lambda ends: paddle.to_tensor(ends, dtype="int32"),
    "numpy array": np.array,
}


def packed(query_ends, key_ends, heads=2):
    x = paddle.arange(5 * 2 * 4, dtype="float32").reshape([5, 2, 4]) / 40
    lengths = {"actual_seq_qlen": query_ends, "actual_seq_kvlen": key_ends}
    return npu_fusion_attention(x, x, x, heads, "TND", **lengths)[0]


@pytest.mark.parametrize("form", FORMS)
def test_lengths_in_every_form(form, on_cpu):
    ends = FORMS[form](ENDS)
    assert (packed(ends, ends) == packed(ENDS, ENDS)).all()


def batch(layout="BSND", heads=2, **arguments):
    x = paddle.zeros([1, 8, 2, 4] if layout == "BSND" else [1, 8, 8])
    return npu_fusion_attention(x, x, x, heads, layout, **arguments)


# The call, and what its message names: the argument, its value, and what to pass instead.
REFUSED = {
    "floats": (lambda: packed([2.0, 5.0], ENDS), ("actual_seq_qlen", "2.0", "int")),
    "a float tensor": (
        lambda: packed(ENDS, paddle.to_tensor([2.0, 5.0])),
        ("actual_seq_kvlen", "2.0", "int"),
    ),
    "a number": (lambda: packed(5, ENDS), ("actual_seq_qlen", "5", "ints")),
    "too few tokens": (lambda: packed([2, 4], ENDS), ("actual_seq_qlen", "[2, 4]", "5")),
    "queries without keys": (lambda: packed([2, 5], [5, 5]), ("3", "keys")),
    "other heads": (lambda: batch(heads=3), ("head_num", "3", "[1, 8, 2, 4]", "BSND", "2")),
    "heads of BSH": (lambda: batch("BSH", 3), ("head_num", "3", "query")),
    "no heads": (lambda: batch(heads=None), ("head_num", "None", "int")),
    "a keep_prob that is none": (lambda: batch(keep_prob="1"), ("keep_prob", "'1'", "float")),
    "an infinite scale": (lambda: batch(scale=float("inf")), ("scale", "inf")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_in_its_own_names(case):
    call, keys = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith("npu_fusion_attention: ") and all(key in message for key in keys), message


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf")])
def test_flash_attention_refuses_a_scale_that_is_not_finite(scale):
    x = paddle.zeros([1, 8, 2, 4])
    with pytest.raises(ValueError, match=f"flash_attention: .*scale.*{scale}"):
        flash_attention(x, x, x, scale=scale)
