"""Unmodified PaddleNLP Llama with the fused operators of its NPU path, against the composed model on the CPU.

In float32 (attention composed: flash_attention_npu takes 16-bit types only) losses and norms agree to 1e-5.
In float16 and bfloat16 the yardstick is the composed model in the same precision: the fused model may not be
further from the float32 run than that model is. Roundings send two such runs on different paths, so that in
one run either model may come out closer, by a factor of two; the distances are pooled over several runs.
"""

import functools

import numpy as np
import paddle
import pytest
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM
from roundings import ADAM_EPSILON

pytestmark = pytest.mark.slow

STEPS = 20
SEEDS = range(3)
# By this factor the pooled distances of two models of equal accuracy may differ (seen over groups of seeds).
SAMPLING = 1.5
FUSED = {
    "use_flash_attention": True,
    "use_fused_rms_norm": True,
    "use_fast_layer_norm": False,  # read by use_fused_rms_norm; PaddleNLP's training script always sets it
    "use_fused_rope": True,
    "fuse_attention_qkv": True,
    "fuse_attention_ffn": True,
}


@pytest.fixture(scope="module")
def stock_folders(tmp_path_factory, seed):
    """Small Llamas with random weights in PaddleNLP's stock layout, one for each seed."""
    paddle.set_device("cpu")
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
    folders = [str(tmp_path_factory.mktemp("stock")) for _ in SEEDS]
    for number, folder in enumerate(folders):
        paddle.seed(seed + number)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folders


def batches(seed):
    """Four batches over and over: random tokens that can be learnt by heart."""
    samples = np.random.default_rng(seed).integers(0, 512, (4, 2, 49))
    for step in range(STEPS):
        tokens = samples[step % 4]
        yield paddle.to_tensor(tokens[:, :-1]), paddle.to_tensor(tokens[:, 1:])


def run(folder, device, dtype, *, seed=0, recompute=False, static=False, **flags):
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
        epsilon=ADAM_EPSILON,
        multi_precision=dtype != "float32",
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    # Without a scale most gradients of a float16 model are subnormal; a power of two changes nothing else.
    scale = 1024.0 if dtype == "float16" else 1.0
    losses, norms = [], []
    for tokens, labels in batches(seed):
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
def composed(stock_folders):
    """run() of the composed model in float32 on the CPU, with each seed once."""
    return functools.cache(lambda seed: run(stock_folders[seed], "cpu", "float32", seed=seed))


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recompute"])
def test_float32_equals_the_cpu_place(stock_folders, composed, recompute):
    losses, norms = composed(0)
    assert losses[-1] < losses[0]
    flags = FUSED | {"use_flash_attention": False}
    ours = run(stock_folders[0], "npu:0", "float32", recompute=recompute, **flags)
    np.testing.assert_allclose(ours[0], losses, rtol=1e-5)
    np.testing.assert_allclose(ours[1], norms, rtol=1e-5)


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_16_bit_is_no_further_from_float32_than_composed_operators(stock_folders, composed, dtype):
    squares = {"fused": [], "composed": []}
    for seed, folder in zip(SEEDS, stock_folders, strict=True):
        exact = np.array(composed(seed))
        for name, flags in (("fused", FUSED), ("composed", {})):
            relative = np.array(run(folder, "npu:0", dtype, seed=seed, **flags)) / exact - 1
            squares[name].append(np.mean(relative**2, axis=1))
    ours, theirs = (np.sqrt(np.mean(squares[name], axis=0)) for name in ("fused", "composed"))
    for quantity, distance, yardstick in zip(("loss", "gradient norm"), ours, theirs, strict=True):
        assert distance <= SAMPLING * yardstick, quantity


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_recompute_changes_nothing(stock_folders, dtype):
    plain = run(stock_folders[0], "npu:0", dtype, **FUSED)
    again = run(stock_folders[0], "npu:0", dtype, recompute=True, **FUSED)
    np.testing.assert_array_equal(plain, again)


def test_composed_model_runs_through_to_static(stock_folders, composed):
    losses, norms = composed(0)
    static = run(stock_folders[0], "npu:0", "float32", static=True)
    np.testing.assert_allclose(static[0], losses, rtol=1e-5)
    np.testing.assert_allclose(static[1], norms, rtol=1e-5)


def test_flash_attention_refuses_float32(stock_folders):
    with pytest.raises(ValueError, match="accepted: float16 or bfloat16"):
        run(stock_folders[0], "npu:0", "float32", **FUSED)
