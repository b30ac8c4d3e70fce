"""One of two ranks: the operators of fleet's layers, on its part of tensors that both can make whole."""

import sys

import virtual_npu

virtual_npu.activate()

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import ranks  # noqa: E402
from paddle import _C_ops  # noqa: E402
from paddle import distributed as dist  # noqa: E402
from paddle.distributed import fleet  # noqa: E402

ROWS, CLASSES, WIDTH = 6, 10, 4
TYPES = ("float32", "float16", "bfloat16")


def whole(shape: list[int], dtype: str, seed: int) -> paddle.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    return paddle.to_tensor(values.astype("float32")).astype(dtype)


def values(tensor: paddle.Tensor) -> np.ndarray:
    return tensor.astype("float64").numpy()


def error(actual: paddle.Tensor, wanted: np.ndarray) -> float:
    assert list(actual.shape) == list(wanted.shape), (actual.shape, wanted.shape)
    return float(np.abs(values(actual) - wanted).max())


def part(array, rank: int, axis: int):
    return np.split(array, 2, axis=axis)[rank]


def movement(rank: int, ring: int, dtype: str) -> dict[str, float]:
    """Operators that move numbers must give these very numbers."""
    x = whole([ROWS, CLASSES], dtype, 1)
    mine = paddle.split(x, 2, axis=-1)[rank]
    errors = {
        "c_identity": error(_C_ops.c_identity(mine, ring, True, True), values(mine)),
        "c_split": error(_C_ops.c_split(x, rank, 2, ring, True), values(mine)),
        "c_concat": error(_C_ops.c_concat(mine, rank, 2, ring, True, True), values(x)),
    }
    both = [whole([ROWS, WIDTH], dtype, seed) for seed in (2, 3)]
    total = values((both[0].astype("float32") + both[1].astype("float32")).astype(dtype))
    errors["c_allreduce_sum"] = error(_C_ops.c_allreduce_sum(both[rank], ring, True, True), total)
    errors["mp_allreduce_sum"] = error(_C_ops.mp_allreduce_sum(both[rank], ring), total)
    return errors


def embedding(rank: int, dtype: str) -> dict[str, float]:
    """Rows of the other rank are zeros; the gradient is that of this rank's rows."""
    table, ids = whole([CLASSES, WIDTH], dtype, 4), paddle.to_tensor([[0, 7, 3], [9, 7, 5]])
    mine = paddle.split(table, 2)[rank]
    mine.stop_gradient = False
    out = _C_ops.c_embedding(mine, ids, rank * CLASSES // 2, CLASSES)
    rows = values(table)[ids.numpy()]
    here = (ids.numpy() // (CLASSES // 2) == rank)[..., None]
    out.sum().backward()
    counts = np.bincount(ids.numpy().ravel(), minlength=CLASSES)[:, None] * np.ones([1, WIDTH])
    return {
        "c_embedding": error(out, rows * here),
        "c_embedding_grad": error(mine.grad, part(counts, rank, 0)),
    }


def cross_entropy(rank: int, ring: int, dtype: str) -> dict[str, float]:
    """Against float64: the largest error, of the loss as a share of the largest loss.

    The logits are far apart, so that nothing may be cut off: Paddle's own bound differences by -64.
    """
    logits = whole([ROWS, CLASSES], dtype, 5) * 30
    labels = paddle.to_tensor([[0], [9], [4], [5], [-100], [2]])
    x, known = values(logits), labels.numpy() != -100
    shifted = x - x.max(1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(1, keepdims=True))
    one_hot = np.eye(CLASSES)[np.where(known, labels.numpy(), 0).ravel()]
    losses = (log_sum - (shifted * one_hot).sum(1, keepdims=True)) * known
    probabilities = np.exp(shifted - log_sum)
    mine = paddle.split(logits, 2, axis=-1)[rank]
    mine.stop_gradient = False
    softmax, loss = _C_ops.c_softmax_with_cross_entropy(mine, labels, -100, ring, rank, 2)
    loss.sum().backward()
    return {
        "loss": error(loss, losses) / float(losses.max()),
        "softmax": error(softmax, part(probabilities, rank, 1)),
        "gradient": error(mine.grad, part((probabilities - one_hot) * known, rank, 1)),
    }


def masked_classes(rank: int, ring: int) -> dict[str, float]:
    """Rows whose logits are -inf on rank 0, on rank 1, and on none."""
    logits = whole([3, CLASSES], "float32", 8)
    logits[0, : CLASSES // 2] = logits[1, CLASSES // 2 :] = -np.inf
    labels, x = [7, 2, 3], values(logits)
    probabilities = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    mine = paddle.split(logits, 2, axis=-1)[rank]
    mine.stop_gradient = False
    softmax, loss = _C_ops.c_softmax_with_cross_entropy(
        mine, paddle.to_tensor(labels)[:, None], -100, ring, rank, 2
    )
    loss.sum().backward()
    return {
        "loss": error(loss, -np.log(probabilities[range(3), labels])[:, None]),
        "softmax": error(softmax, part(probabilities, rank, 1)),
        "gradient": error(mine.grad, part(probabilities - np.eye(CLASSES)[labels], rank, 1)),
    }


def experts(rank: int, ring: int, dtype: str) -> dict[str, object]:
    """Two experts on each rank; the tokens of both ranks arrive, and come back."""
    counts = np.array([[1, 2, 0, 3], [2, 0, 1, 1]])  # [from, expert], experts 0 and 1 on rank 0
    to = counts[rank]
    arriving = counts[:, rank * 2 : rank * 2 + 2].ravel()
    tokens = whole([int(to.sum()), WIDTH], dtype, 6 + rank)
    local, world = paddle.to_tensor(to), paddle.to_tensor(arriving)
    there = _C_ops.global_scatter(tokens, local, world, ring)
    sent = [values(whole([int(counts[r].sum()), WIDTH], dtype, 6 + r)) for r in (0, 1)]
    wanted = []
    for expert in (0, 1):
        for source in (0, 1):
            first = counts[source][: rank * 2 + expert].sum()
            wanted.append(sent[source][first : first + counts[source][rank * 2 + expert]])
    back = _C_ops.global_gather(there, local, world, ring)
    return {
        "global_scatter": error(there, np.concatenate(wanted)),
        "global_gather": error(back, values(tokens)),
    }


def main() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"mp_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    dist.barrier(group)
    rank, ring = group.rank, group.id
    report = {
        dtype: movement(rank, ring, dtype)
        | embedding(rank, dtype)
        | cross_entropy(rank, ring, dtype)
        | experts(rank, ring, dtype)
        for dtype in TYPES
    }
    report["masked classes"] = masked_classes(rank, ring)
    integers = paddle.arange(ROWS * CLASSES).reshape([ROWS, CLASSES])
    mine = paddle.split(integers, 2, axis=-1)[rank]
    report["int64"] = {"c_concat": error(_C_ops.c_concat(mine, rank, 2, ring, True, True), values(integers))}
    try:
        _C_ops.c_softmax_with_cross_entropy(
            whole([1, 5], "float32", 0), paddle.to_tensor([[10]]), -100, ring, rank, 2
        )
    except (ValueError, IndexError, RuntimeError) as refused:
        report["bad label"] = str(refused)
    ranks.write(report)


if __name__ == "__main__":
    sys.exit(main())
