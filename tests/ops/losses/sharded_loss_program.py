"""Two ranks that have half of the vocabulary each: losses and gradients of linear_cross_entropy with a group.

python sharded_loss_program.py FOLDER
"""

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from precision import ROUNDING

import paddle_fused

TOKENS, HIDDEN, VOCABULARY = (3, 7), 33, 46
CASES = [
    (backend, dtype, transposed, reduction)
    for backend in ("ascend", "native", "composed")
    for dtype in ("float32", "bfloat16", "float16")
    for transposed, reduction in ((False, "none"), (True, "mean"))
]


def exact(hidden, weight, labels, upstream):
    """float64: losses [T], and the gradients of sum(losses upstream) to hidden and weight [H, V]."""
    logits = hidden @ weight
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    softmax = shifted / shifted.sum(-1, keepdims=True)
    counts = labels != -100
    picked = np.where(counts, labels, 0)
    losses = -np.log(softmax[np.arange(len(labels)), picked]) * counts
    dlogits = softmax.copy()
    dlogits[np.arange(len(labels)), picked] -= 1
    dlogits *= (upstream * counts)[:, None]
    return losses, dlogits @ weight.T, hidden.T @ dlogits


def main() -> None:
    dist.init_parallel_env()
    group, rank = dist.new_group([0, 1]), dist.get_rank()
    random, errors = np.random.default_rng(0), {}
    labels = random.integers(0, VOCABULARY, TOKENS)
    labels[:, 0] = -100
    upstream = random.standard_normal(TOKENS).astype("float32")
    ids, own = paddle.to_tensor(labels), slice(rank * VOCABULARY // 2, (rank + 1) * VOCABULARY // 2)

    def results(hidden, weight, transposed, reduction, group=None):
        hidden, weight = hidden.detach(), weight.detach()
        hidden.stop_gradient = weight.stop_gradient = False
        options = {"transpose_weight": transposed, "reduction": reduction, "group": group}
        loss = paddle_fused.linear_cross_entropy(hidden, weight, ids, **options)
        scaled = (loss * paddle.to_tensor(upstream)).sum() if reduction == "none" else loss
        dhidden, dweight = paddle.grad([scaled], [hidden, weight])
        dweight = dweight.T if transposed else dweight
        return [tensor.astype("float32").numpy().astype("float64") for tensor in (loss, dhidden, dweight)]

    for backend, dtype, transposed, reduction in CASES:
        hidden = paddle.to_tensor(random.standard_normal((*TOKENS, HIDDEN)).astype("float32")).astype(dtype)
        weight = paddle.to_tensor(random.standard_normal((HIDDEN, VOCABULARY)).astype("float32")).astype(
            dtype
        )
        wide = [tensor.astype("float32").numpy().astype("float64") for tensor in (hidden, weight)]
        count = (labels != -100).sum()
        scale = upstream if reduction == "none" else np.full(TOKENS, 1 / count)
        losses, dhidden, dweight = exact(
            wide[0].reshape(-1, HIDDEN), wide[1], labels.reshape(-1), scale.reshape(-1)
        )
        loss = losses.reshape(TOKENS) if reduction == "none" else losses.sum() / count
        truth = [loss, dhidden.reshape(*TOKENS, HIDDEN), dweight]
        whole_weight = weight.T.contiguous() if transposed else weight
        own_weight = (whole_weight[own] if transposed else whole_weight[:, own]).contiguous()
        with paddle_fused.use_backend(backend):
            whole = results(hidden, whole_weight, transposed, reduction)
            shared = results(hidden, own_weight, transposed, reduction, group)
        whole[2], truth[2] = whole[2][:, own], truth[2][:, own]
        for name, there, here, true in zip(("loss", "dhidden", "dweight"), whole, shared, truth, strict=True):
            step = ROUNDING["float32" if name == "loss" else dtype] * np.abs(true).max()
            error, allowed = np.abs(here - true).max(), 2 * np.abs(there - true).max() + 2 * step
            if not error <= allowed:
                errors[f"{backend} {dtype} {reduction} {name}"] = (error, allowed)
    ran = {entry.backend for entry in paddle_fused.dispatch_log()}
    ranks.write({"beyond": errors, "ran": sorted(ran)})


main()
