"""Unmodified PaddleNLP Llama with the fused operators of its NPU path, against the composed model on the CPU.

In float32 (attention composed: flash_attention_npu takes 16-bit types only) losses and norms agree to 1e-5.
In float16 and bfloat16 the yardstick is the composed model in the same precision: over the run, the fused
model may not be further from the float32 run than that model is.
"""

import functools

import numpy as np
import paddle
import pytest
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

STEPS = 20
FUSED = {
    "use_flash_attention": True,
    "use_fused_rms_norm": True,
    "use_fast_layer_norm": False,  # read by use_fused_rms_norm; PaddleNLP's training script always sets it
    "use_fused_rope": True,
    "fuse_attention_qkv": True,
    "fuse_attention_ffn": True,
}


@pytest.fixture(scope="module")
def stock_folder(tmp_path_factory):
    """A small Llama with random weights in PaddleNLP's stock layout."""
    paddle.set_device("cpu")
    paddle.seed(11)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        seq_length=64,
    )
    folder = str(tmp_path_factory.mktemp("stock"))
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def batches():
    rng = np.random.default_rng(5)
    for _ in range(STEPS):
        tokens = rng.integers(0, 512, (2, 49))
        yield paddle.to_tensor(tokens[:, :-1]), paddle.to_tensor(tokens[:, 1:])


def run(folder, device, dtype, recompute=False, static=False, **flags):
    """Losses and global gradient norms of STEPS training steps, as float64 arrays."""
    paddle.set_device(device)
    config = LlamaConfig.from_pretrained(folder)
    for name, value in flags.items():
        setattr(config, name, value)
    model = LlamaForCausalLM.from_pretrained(folder, config=config, dtype=dtype)
    model.train()
    if recompute:
        model.recompute_enable()
    forward = paddle.jit.to_static(model, full_graph=True) if static else model
    optimizer = paddle.optimizer.AdamW(
        1e-3,
        parameters=model.parameters(),
        weight_decay=0.01,
        multi_precision=dtype != "float32",
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    # Without a scale most gradients of a float16 model are subnormal; a power of two changes nothing else.
    scale = 1024.0 if dtype == "float16" else 1.0
    losses, norms = [], []
    for tokens, labels in batches():
        loss = forward(tokens, labels=labels)
        loss = loss[0] if isinstance(loss, (tuple, list)) else loss
        (loss.astype("float32") * scale).backward()
        squares = [float((p.grad.astype("float32") / scale).square().sum()) for p in model.parameters()]
        for parameter in model.parameters():
            parameter.grad.set_value((parameter.grad.astype("float32") / scale).astype(parameter.grad.dtype))
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
        norms.append(np.sqrt(np.sum(squares)))
    assert str(loss.place) == ("Place(cpu)" if device == "cpu" else "Place(npu:0)")
    return np.array(losses), np.array(norms)


@pytest.fixture(scope="module")
def composed(stock_folder):
    """run() of the composed model, each combination once."""
    return functools.cache(functools.partial(run, stock_folder))


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recompute"])
def test_float32_equals_the_cpu_place(stock_folder, composed, recompute):
    losses, norms = composed("cpu", "float32")
    assert losses[-1] < losses[0]
    flags = FUSED | {"use_flash_attention": False}
    ours = run(stock_folder, "npu:0", "float32", recompute, **flags)
    np.testing.assert_allclose(ours[0], losses, rtol=1e-5)
    np.testing.assert_allclose(ours[1], norms, rtol=1e-5)


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recompute"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_is_no_further_from_float32_than_composed_operators(stock_folder, composed, dtype, recompute):
    exact = composed("cpu", "float32")
    baseline = composed("npu:0", dtype)
    ours = run(stock_folder, "npu:0", dtype, recompute, **FUSED)
    for name, fused_run, composed_run, exact_run in zip(("loss", "norm"), ours, baseline, exact, strict=True):
        fused_error = np.sqrt(np.mean((fused_run / exact_run - 1) ** 2))
        composed_error = np.sqrt(np.mean((composed_run / exact_run - 1) ** 2))
        print(f"{dtype} {name}: fused {fused_error:.2e} composed {composed_error:.2e}")
        assert fused_error <= 1.2 * composed_error


def test_recompute_changes_nothing(stock_folder):
    plain = run(stock_folder, "npu:0", "bfloat16", False, **FUSED)
    again = run(stock_folder, "npu:0", "bfloat16", True, **FUSED)
    np.testing.assert_array_equal(plain, again)


def test_composed_model_runs_through_to_static(stock_folder, composed):
    losses, norms = composed("cpu", "float32")
    static = run(stock_folder, "npu:0", "float32", static=True)
    np.testing.assert_allclose(static[0], losses, rtol=1e-5)
    np.testing.assert_allclose(static[1], norms, rtol=1e-5)


def test_flash_attention_refuses_float32(stock_folder):
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        run(stock_folder, "npu:0", "float32", **FUSED)
