"""PaddleFormers' default attention, ``_attn_implementation="flashmask"``, on npu: its models as they are.

No operator is fused but by the patch of ``paddle.nn.functional.flashmask_attention``.
"""

import numpy as np
import paddle
import pytest
from fused_models.comparison import (
    BATCH,
    IGNORED,
    LENGTH,
    Batch,
    assert_as_accurate,
    built,
    float64_results,
    random_batch,
    results,
    unfused_results,
)
from fused_models.formers import BY_NAME

import paddle_fused
from llm_npu import patches

NAMES = ["llama-gqa", "qwen3", "qwen3-window", "ernie4.5", "qwen3-moe", "deepseek-v3"]


def shared(question: int, *answers: int) -> np.ndarray:
    ends = question + np.cumsum(answers)
    return np.concatenate([np.full(question, ends[-1]), np.repeat(ends, answers)])


# Rows of the batch; padding at the end is hidden from itself on, as PaddleFormers packs, or from row 0 on.
KINDS = {
    "documents": [np.repeat([5, 12, 16], [5, 7, 4]), np.repeat([9, 16], [9, 7])],
    "padding": [np.concatenate([np.repeat([5, 12], [5, 7]), np.arange(12, 16)]), np.repeat([9, 0], [9, 7])],
    "shared question": [shared(6, 4, 6), shared(3, 8, 5)],
}
TAILS = {"padding": [4, 7]}


def indices(kind, place=None):
    rows = np.stack(KINDS[kind])[:, None, :, None].astype(np.int32)
    return {"attn_mask_startend_row_indices": paddle.to_tensor(rows, place=place)}


def batch_of(kind):
    whole = random_batch()
    labels = whole.labels.copy()
    for row, tail in enumerate(TAILS.get(kind, [0] * BATCH)):
        labels[row, LENGTH - tail :] = IGNORED
    return Batch(whole.ids, labels)


@pytest.fixture(autouse=True, scope="module")
def patched():
    patches.apply()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_upstream_model_runs_packed(name, kind, on_npu):
    family, batch = BY_NAME[name], batch_of(kind)
    exact = float64_results(family, batch, **indices(kind, paddle.CPUPlace()))
    composed = unfused_results(family, batch, "bfloat16", **indices(kind))
    paddle_fused.reset_dispatch_log()
    upstream = built(family, dtype="bfloat16", _attn_implementation="flashmask")
    packed = results(family, upstream, batch, **indices(kind))
    assert_as_accurate(packed, composed, exact, "bfloat16")
    ran = {(call.operator, call.backend) for call in paddle_fused.dispatch_log()}
    assert ran == {("flash_attention", "ascend")}
    if name != "qwen3-window":
        assert {call.mode for call in paddle_fused.dispatch_log()} == {"flash_attention_npu, causal, varlen"}


@pytest.mark.parametrize("name", NAMES)
def test_padding_on_the_left_is_hidden(name, on_npu):
    """The upstream function drops the mask of padding in silence."""
    family = BY_NAME[name]
    ids, mask = paddle.to_tensor(random_batch().ids), np.ones((BATCH, LENGTH), np.int64)
    mask[0, :5] = 0
    logits = {}
    for attention in ("flashmask", "eager"):
        model = family.build(_attn_implementation=attention)
        with paddle.no_grad():
            out = model(input_ids=ids, attention_mask=paddle.to_tensor(mask))
        logits[attention] = (out if isinstance(out, paddle.Tensor) else out[0]).numpy()[mask == 1]
    np.testing.assert_allclose(*logits.values(), atol=2e-4)
