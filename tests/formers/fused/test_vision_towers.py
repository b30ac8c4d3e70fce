"""What Qwen2.5-VL and Qwen3-VL compute once per batch of images, against PaddleFormers' own forwards."""

import numpy as np
import paddle
import pytest
from fused_models import vision
from fused_models.comparison import built, loss_and_logits

import paddle_fused
from llm_npu.core.errors import UserError
from llm_npu.surgery import swap
from llm_npu.surgery.vision import attention, qwen_vl
from paddle_fused import contracts

HEADS, HEAD_DIM = 2, 16
QWEN = [family for family in vision.FAMILIES if family.model_type.startswith("qwen")]
every_family = pytest.mark.parametrize("family", QWEN, ids=str)
# Windows that are whole, cut in one direction and in both; videos of several frames; one window.
GRIDS = ([1, 4, 8], [1, 6, 10], [2, 6, 4], [1, 2, 2], [3, 10, 14])


def tower_of(family):
    """The tower in float32 on the CPU place, with all changes, and as PaddleFormers makes it."""
    paddle.set_device("cpu")
    return (built(family, operator).model.visual.train() for operator in ("attention", None))


def forward_and_gradients(tower, pixels, grids):
    out = tower(paddle.to_tensor(pixels), grid_thw=paddle.to_tensor(grids))
    outs = [out] if isinstance(out, paddle.Tensor) else [out[0], *out[1]]
    sum((value * (1 + value)).sum() for value in outs).backward()
    return [value.numpy() for value in outs], {
        name: parameter.grad.numpy() for name, parameter in tower.named_parameters()
    }


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("grids", [GRIDS, GRIDS[-1:], GRIDS[3:4]], ids=["several", "video", "one window"])
def test_a_tower_computes_what_upstream_computes(family, grids):
    fused, upstream = tower_of(family)
    assert swap.is_swapped(fused) and swap.is_swapped(fused.patch_embed)
    grids = np.array(grids)
    shape = grids.prod(1).sum(), *family.patch
    pixels = np.random.default_rng(0).standard_normal(shape, np.float32)
    (outs, gradients), (expected, expected_gradients) = (
        forward_and_gradients(tower, pixels, grids) for tower in (fused, upstream)
    )
    for out, values in zip(outs, expected, strict=True):
        np.testing.assert_allclose(out, values, atol=1e-5 * np.abs(values).max())
    assert gradients.keys() == expected_gradients.keys()
    for name, values in expected_gradients.items():
        # The gradient of the bias of keys is zero, a sum of terms as large as those of the weight.
        terms = expected_gradients.get(name.removesuffix("bias") + "weight", values)
        tolerance = 2e-5 * np.abs(terms).max()
        np.testing.assert_allclose(gradients[name], values, atol=tolerance, err_msg=name)


def test_the_order_of_windows_is_upstreams():
    family = QWEN[0]
    _, tower = tower_of(family)
    order, lengths = qwen_vl.window_order(np.array(GRIDS) // [1, 2, 2], 2)
    expected, ends = tower.get_window_index(paddle.to_tensor(GRIDS))
    np.testing.assert_array_equal(order, expected.numpy())
    np.testing.assert_array_equal(np.cumsum([0, *lengths]) * 4, np.unique(ends))


@pytest.mark.parametrize("family", vision.FAMILIES, ids=str)
def test_images_without_their_tokens_are_refused(family):
    paddle.set_device("cpu")
    model, batch = built(family, "attention"), vision.batch(False)
    ids = np.where(batch.ids == vision.IMAGE, 5, batch.ids)
    with pytest.raises(UserError, match=r"tokens: 0, features \d+"):
        loss_and_logits(family, model, vision.Batch(ids, batch.labels), **vision.inputs(family, False))


def test_windows_beyond_the_operators_limit_are_split_into_calls():
    """The operator takes at most 2K sequences in layout TND."""
    paddle.set_device("npu:0")
    count, window = contracts.limit("attention.sequences") + 1, 3
    shape = [count, HEADS, window, HEAD_DIM]
    random = np.random.default_rng(0)
    windows = [paddle.to_tensor(random.standard_normal(shape, np.float32), "bfloat16") for _ in range(3)]
    joined = [x.transpose([1, 0, 2, 3]).reshape([1, HEADS, count * window, HEAD_DIM]) for x in windows]
    paddle_fused.reset_dispatch_log()
    out, _ = attention.attention(None, *joined, lengths=(window,) * count)
    (ran,) = paddle_fused.dispatch_log()
    assert (ran.backend, ran.count) == ("ascend", 2)
    expected = paddle_fused.flash_attention(*windows, None, layout="BNSD").transpose([0, 2, 1, 3])
    assert paddle.equal_all(out.flatten(), expected.flatten())


def test_parts_are_equal_and_complete():
    lengths = tuple(range(1, 12))
    parts = attention.at_most(4, lengths)
    assert [len(part) for part in parts] == [4, 4, 3]
    assert sum(parts, ()) == lengths
    assert attention.at_most(4, (5, 6)) == [(5, 6)]
