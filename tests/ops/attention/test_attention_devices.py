"""flash_attention with a current device other than the tensors', and its statistics in a loss."""

import numpy as np
import paddle
import pytest
from attention_calls import random_batch, random_tokens, tensor

from paddle_fused import flash_attention, masks, use_backend

pytestmark = pytest.mark.sampled

HIDDEN = np.random.default_rng(0).random((6, 6)) < 0.4
HIDDEN[:, 0] = False
MASKS = {
    "none": lambda: None,
    "causal": masks.causal,
    "prefix": lambda: masks.prefix([1, 4]),
    "documents": lambda: masks.documents([2, 4]),
    "array": lambda: masks.dense(HIDDEN),
    "array in a band": lambda: masks.dense(HIDDEN) & masks.causal(),
    "tensor on the device that is set": lambda: masks.dense(paddle.to_tensor(HIDDEN)) & masks.causal(),
    "queries that see nothing": lambda: masks.dense(HIDDEN | (np.arange(6)[:, None] == 2), True),
}
RUNS = [
    ("native", "float32", "cpu", "npu:0"),
    ("native", "bfloat16", "npu", "cpu"),
    ("composed", "float32", "cpu", "npu:0"),
    ("composed", "bfloat16", "npu", "cpu"),
    ("ascend", "bfloat16", "npu", "cpu"),
]
ASCEND_HAS = {"none", "causal", "array", "array in a band", "tensor on the device that is set"}


@pytest.mark.parametrize("backend, dtype, device, default", RUNS)
def test_results_are_on_the_device_of_the_tensors(backend, dtype, device, default):
    for name, mask in MASKS.items():
        if backend == "ascend" and name not in ASCEND_HAS:
            continue
        results = []
        for set_device in (default, "npu:0" if device == "npu" else "cpu"):
            paddle.set_device(set_device)
            q, k, v = (tensor(x, dtype, device) for x in random_batch("BSND", (6, 6)))
            with use_backend(backend, strict=True):
                out = flash_attention(q, k, v, mask())
            gradients = paddle.grad(out, [q, k, v])
            assert paddle.get_device() == set_device
            assert all(x.place._equals(q.place) for x in (out, *gradients)), name
            results.append([x.astype("float32").numpy() for x in (out, *gradients)])
        for there, here in zip(*results, strict=True):
            np.testing.assert_array_equal(there, here, err_msg=name)


@pytest.mark.parametrize("backend, dtype, device, default", RUNS)
def test_sequences_are_on_the_device_of_the_tensors(backend, dtype, device, default):
    paddle.set_device(default)
    tensors = [tensor(x, dtype, device) for x in random_tokens(10, 10)]
    with use_backend(backend, strict=True):
        ends = [0, 4, 10]
        out = flash_attention(*tensors, masks.causal(), layout="TND", cu_seqlens_q=ends, cu_seqlens_k=ends)
    assert out.place._equals(tensors[0].place)


@pytest.mark.parametrize("backend", ["native", "composed"])
def test_dropout_draws_on_the_device_of_the_tensors(backend):
    results = []
    for default in ("npu:0", "cpu"):
        paddle.set_device(default)
        q, k, v = (tensor(x) for x in random_batch("BSND", (6, 6)))
        paddle.seed(3)
        with use_backend(backend, strict=True):
            results.append(flash_attention(q, k, v, dropout=0.5))
    assert all(x.place.is_cpu_place() for x in results)
    np.testing.assert_array_equal(*(x.numpy() for x in results))


@pytest.mark.parametrize("backend, dtype, device, default", RUNS)
def test_statistics_have_no_gradient(backend, dtype, device, default):
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    q, k, v = (tensor(x, dtype, device) for x in random_batch("BSND", (6, 6)))
    with use_backend(backend, strict=True):
        out, *statistics = flash_attention(q, k, v, return_softmax_stats=True)
    assert not out.stop_gradient and all(x.stop_gradient for x in statistics)
    loss = out.astype("float32").sum() + sum(x.sum() for x in statistics)
    with_statistics, alone = (paddle.grad(x, [q, k, v]) for x in (loss, flash_sum(backend, q, k, v)))
    for a, b in zip(with_statistics, alone, strict=True):
        assert (a == b).all()


def flash_sum(backend, *tensors):
    with use_backend(backend, strict=True):
        return flash_attention(*tensors).astype("float32").sum()
