"""Gemma in mixed precision."""

import paddle
from fused_models.comparison import random_batch
from fused_models.families import BY_NAME

from llm_npu import patches
from llm_npu.surgery import apply_fused_kernels


def test_mixed_precision_leaves_the_rotary_frequencies_in_float32():
    patches.apply()
    paddle.set_device("npu:0")
    model = BY_NAME["gemma"].build()
    model.train()
    apply_fused_kernels(model)
    model = paddle.amp.decorate(model, level="O2", dtype="bfloat16")
    tokens = paddle.to_tensor(random_batch().ids)
    with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
        loss = model(input_ids=tokens, labels=tokens)[0]
    loss.backward()
    rotary = model.gemma.layers[0].self_attn.rotary_emb
    cosines, _ = rotary(paddle.zeros([1]), seq_len=40)
    half = rotary.dim // 2
    expected = (39.0 / 10000.0 ** (paddle.arange(half, dtype="float64") / half)).cos()
    assert float((cosines[0, 39, 0, :half].astype("float64") - expected).abs().max()) < 1e-5
