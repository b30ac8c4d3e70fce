"""Ulysses on real ranks, compared with attention on one rank, and both with float64."""

import os

import numpy as np
import paddle
import paddle.distributed as dist
import ranks

import paddle_fused
from paddle_fused import masks
from paddle_fused.context_parallel.exchange import exchange
from paddle_fused.context_parallel.heads import shares
from paddle_fused.context_parallel.ulysses import ulysses_attention

paddle.set_device(f"npu:{os.environ['PADDLE_TRAINER_ID']}")
dist.init_parallel_env()
rank, count = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(reversed(range(count))))  # its order need not be that of the ranks
random = np.random.default_rng(5)
BATCH, SIZE = 2, 32
DOCUMENTS = masks.documents([[5, 30, 29], [64]])
# name, N, Nkv, S, mask
CASES = (
    ("even", 4, 4, 64, masks.causal()),
    ("not causal", 4, 4, 64, None),
    ("key heads", 8, 4, 64, masks.causal()),
    ("uneven", 10, 5, 63, masks.causal()),
    ("documents", 4, 4, 64, DOCUMENTS),
    ("few key heads", 6, 2, 64, DOCUMENTS),
    ("one key head", 4, 1, 63, masks.causal()),
)


def results(attention, arrays, dtype) -> list:
    """The output and the gradients of query, key and value; the last array is the output's gradient."""
    *inputs, gradient = [paddle.to_tensor(array, dtype=dtype) for array in arrays]
    for tensor in inputs:
        tensor.stop_gradient = False
    out = attention(*inputs)
    paddle.autograd.backward([out], [gradient])
    return [out, *(tensor.grad for tensor in inputs)]


def numbers(tensor) -> np.ndarray:
    return tensor.astype("float64").numpy()


def compare(heads: int, key_heads: int, length: int, mask, dtype: str) -> dict:
    """Whether the bits are equal; the errors of one rank and of Ulysses, relative to the largest value."""
    shapes = [(BATCH, length, n, SIZE) for n in (heads, key_heads, key_heads, heads)]
    arrays = [random.standard_normal(shape).astype("float32") for shape in shapes]
    arrays = [paddle.to_tensor(array).astype(dtype).astype("float32").numpy() for array in arrays]
    tokens = shares(length, count)
    start = sum(tokens[: group.rank])
    own = slice(start, start + tokens[group.rank])
    golden = results(lambda *x: paddle_fused.flash_attention(*x, mask), arrays, "float64")
    alone = results(lambda *x: paddle_fused.flash_attention(*x, mask), arrays, dtype)
    split = results(
        lambda *x: ulysses_attention(*x, mask, group=group, tokens=tokens), [x[:, own] for x in arrays], dtype
    )
    report = {"bits": [], "alone": [], "split": []}
    for exact, whole, part in zip(*(map(numbers, run) for run in (golden, alone, split)), strict=True):
        report["bits"].append(bool((whole[:, own] == part).all()))
        report["alone"].append(float(np.abs(whole - exact).max() / np.abs(exact).max()))
        report["split"].append(float(np.abs(part - exact[:, own]).max() / np.abs(exact).max()))
    return report


parts = [paddle.full([other, 1 + group.rank], 10.0 * group.rank + other) for other in range(count)]
received = exchange(parts, [[group.rank, 1 + other] for other in range(count)], group)
report = {
    "received": [part.numpy().tolist() for part in received],
    "expected": [
        np.full([group.rank, 1 + other], 10.0 * other + group.rank).tolist() for other in range(count)
    ],
}
for name, *case in CASES:
    for dtype in ("float32", "bfloat16"):
        report[f"{name}, {dtype}"] = compare(*case, dtype)
if count > 1:
    x = paddle.zeros([1, 4, 1, SIZE])
    try:
        ulysses_attention(x, x, x, group=group)
    except ValueError as error:
        report["too few heads"] = str(error)
ranks.write(report)
