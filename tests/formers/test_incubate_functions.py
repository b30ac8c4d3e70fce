"""Paddle's fused functions that only CUDA builds have: ours under their names, against float64."""

import numpy as np
import paddle
import pytest

from llm_npu.patches import incubate

# Of float32 sums of tens of terms; the unfused form's error is of this size.
TOLERANCE = 2e-6
SHAPES = {"batch": 2, "length": 6, "heads": 3, "head_dim": 64}
FUNCTIONS = """
import paddle
import paddle.incubate.nn.functional as functional
paddle.set_device("npu")
x = paddle.randn([1, 4, 2, 64])
calls = {
    "rms": lambda: functional.fused_rms_norm_ext(x, paddle.ones([64])),
    "rotary": lambda: functional.fused_rotary_position_embedding(x, x),
}
def answers():
    for name, call in calls.items():
        try:
            call()
            print(name, "runs")
        except RuntimeError as error:
            print(name, "is not registered" in str(error))
answers()
from llm_npu.patches import incubate
incubate.apply()
answers()
"""


def test_upstream_paddle_lacks_them(run_program):
    """When this fails, Paddle has them without CUDA and the patch can go."""
    done = run_program(FUNCTIONS)
    assert done.stdout.splitlines() == ["rms True", "rotary True", "rms runs", "rotary runs"], done.stderr


def drawn(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype("float32")


def test_rms_norm(device):
    x, scale = drawn(2, 5, 32), drawn(32)
    y, rstd = incubate.fused_rms_norm_ext(paddle.to_tensor(x), paddle.to_tensor(scale), 1e-6)
    expected = 1 / np.sqrt((x.astype("float64") ** 2).mean(-1) + 1e-6)
    np.testing.assert_allclose(rstd.numpy(), expected.reshape(-1), rtol=TOLERANCE)
    np.testing.assert_allclose(y.numpy(), x * expected[..., None] * scale, rtol=TOLERANCE, atol=TOLERANCE)


def rotated(x, sin, cos, adjacent):
    """float64; x [B, S, N, D], sin and cos [S or B x S, D]."""
    x, sin, cos = (tensor.astype("float64") for tensor in (x, sin, cos))
    if adjacent:
        turned = np.stack([-x[..., 1::2], x[..., 0::2]], -1).reshape(x.shape)
    else:
        half = x.shape[-1] // 2
        turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    sin, cos = (table.reshape(-1, x.shape[1], 1, x.shape[-1]) for table in (sin, cos))
    return x * cos + turned * sin


def angles(base):
    frequencies = base ** (-np.arange(0, SHAPES["head_dim"], 2) / SHAPES["head_dim"])
    return np.repeat(np.arange(SHAPES["length"])[:, None] * frequencies, 2, axis=-1)


@pytest.mark.parametrize("time_major", [False, True])
def test_rotary_makes_its_table(device, time_major):
    x = drawn(*SHAPES.values())
    tensor = paddle.to_tensor(x.transpose(1, 0, 2, 3) if time_major else x)
    q, k, v = incubate.fused_rotary_position_embedding(
        tensor, tensor[:, :, :1], time_major=time_major, rotary_emb_base=500.0
    )
    expected = rotated(x, np.sin(angles(500.0)), np.cos(angles(500.0)), adjacent=True)
    expected = expected.transpose(1, 0, 2, 3) if time_major else expected
    np.testing.assert_allclose(q.numpy(), expected, atol=TOLERANCE)
    np.testing.assert_allclose(k.numpy(), expected[:, :, :1], atol=TOLERANCE)
    assert v is None


@pytest.mark.parametrize("positions", [None, "given"])
@pytest.mark.parametrize("adjacent", [False, True])
def test_rotary_with_a_table(device, adjacent, positions):
    x, sin, cos = drawn(*SHAPES.values()), drawn(8, 64), drawn(8, 64)[::-1].copy()
    ids = np.array([[7, 0, 1, 2, 3, 4], [0, 1, 2, 0, 1, 2]])
    rows = np.arange(SHAPES["length"]) if positions is None else ids
    tables = [paddle.to_tensor(table[: len(rows)] if positions is None else table) for table in (sin, cos)]
    q, _, _ = incubate.fused_rotary_position_embedding(
        paddle.to_tensor(x),
        sin=tables[0].unsqueeze([0, 2]),
        cos=tables[1].unsqueeze([0, 2]),
        position_ids=None if positions is None else paddle.to_tensor(ids),
        use_neox_rotary_style=adjacent,
    )
    np.testing.assert_allclose(q.numpy(), rotated(x, sin[rows], cos[rows], adjacent), atol=TOLERANCE)


def test_half_a_table_is_refused():
    x = paddle.randn([1, 4, 2, 64])
    with pytest.raises(ValueError, match="both or neither"):
        incubate.fused_rotary_position_embedding(x, sin=paddle.ones([4, 64]))
