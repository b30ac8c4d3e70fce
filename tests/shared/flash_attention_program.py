"""Calls of ``flash_attention_npu`` that are repeated in processes with other settings.

As a program: flash_attention_program.py FILE.npz, on the virtual NPU, writes the results of all CASES.
"""

import sys

import numpy as np
import paddle
import paddle_custom_device  # registers the plugin's operators  # noqa: F401
from paddle.base import core

DTYPES = ("bfloat16", "float16")

# name: dtype, shape of query, shape of key and value, keywords of flash_attention
CASES = {
    "causal, GQA": ("bfloat16", (2, 150, 4, 40), (2, 150, 2, 40), {"causal": True}),
    "dropout": ("float16", (1, 130, 2, 64), (1, 200, 1, 64), {"dropout": 0.2}),
    "mask": ("float16", (1, 70, 2, 33), (1, 70, 2, 33), {"mask": True}),
    "varlen": ("bfloat16", (140, 4, 16), (150, 2, 16), {"ends": ([3, 70, 140], [5, 70, 150])}),
}


def device_tensor(array, dtype):
    return paddle.to_tensor(np.asarray(array, np.float32)).astype(dtype)


def numpy_of(tensor):
    return tensor.astype("float32").numpy() if tensor.is_floating_point() else tensor.numpy()


def flash_attention(
    query,
    key,
    value,
    mask=None,
    dropout=0.0,
    causal=False,
    triangle=False,
    ends=None,
    is_test=False,
    seed_offset=None,
):
    """All seven outputs; ``ends``: the cumulative lengths of query and key."""
    lengths = ends or (None, None)
    flags = (dropout, causal, True, is_test, triangle, ends is not None)
    return core.eager._run_custom_op(
        "flash_attention_npu", query, key, value, seed_offset, mask, *lengths, *flags
    )


def run_case(name):
    """Output, softmax maximum and sum, gradients of query, key and value, as float32 arrays."""
    dtype, query_shape, key_shape, keywords = CASES[name]
    random = np.random.default_rng(0)
    shapes = query_shape, key_shape, key_shape, query_shape
    *inputs, out_grad = (device_tensor(random.standard_normal(s), dtype) for s in shapes)
    for x in inputs:
        x.stop_gradient = False
    keywords = dict(keywords)
    if "mask" in keywords:
        keywords["mask"] = paddle.to_tensor(random.random((query_shape[1], key_shape[1])) < 0.4)
    if "ends" in keywords:
        keywords["ends"] = [paddle.to_tensor(e, dtype="int32") for e in keywords["ends"]]
    if "dropout" in keywords:
        keywords["seed_offset"] = paddle.to_tensor([3, 9], dtype="int64")
    outs = flash_attention(*inputs, **keywords)
    return [numpy_of(x) for x in (*outs[:3], *paddle.grad(outs[0], inputs, out_grad))]


if __name__ == "__main__":
    paddle.set_device("npu:0")
    np.savez(sys.argv[1], **{f"{name}.{i}": x for name in CASES for i, x in enumerate(run_case(name))})
