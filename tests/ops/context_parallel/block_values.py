"""Attention in float64 from its definition, for the tests of context parallelism.

Shapes: B batch, S sequence, N and Nkv heads, D and Dv head sizes.
"""

import numpy as np


def inputs(
    seed: int, batch: int, length: int, heads: tuple[int, int], sizes: tuple[int, int]
) -> list[np.ndarray]:
    """query, key, value and the output's gradient: float64."""
    random = np.random.default_rng(seed)
    (n, nkv), (d, dv) = heads, sizes
    shapes = ((n, d), (nkv, d), (nkv, dv), (n, dv))
    return [random.standard_normal((batch, length, *shape)) for shape in shapes]


def attention(query, key, value, out_grad, mask, scale: float) -> list[np.ndarray]:
    """out and the gradients of query, key and value."""
    length = query.shape[1]
    hidden = np.zeros((length, length), bool) if mask is None else mask.to_dense(length)
    hidden = hidden.reshape(-1, 1, length, length)
    groups = query.shape[2] // key.shape[2]
    k, v = (np.repeat(x, groups, 2) for x in (key, value))
    scores = np.where(hidden, -np.inf, scale * np.einsum("bsnd,btnd->bnst", query, k))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("bnst,btnd->bsnd", p, v)
    dp = np.einsum("bsnd,btnd->bnst", out_grad, v)
    ds = scale * p * (dp - (dp * p).sum(-1, keepdims=True))
    dk, dv = np.einsum("bnst,bsnd->btnd", ds, query), np.einsum("bnst,bsnd->btnd", p, out_grad)
    dk, dv = (x.reshape(*x.shape[:2], key.shape[2], groups, -1).sum(3) for x in (dk, dv))
    return [out, np.einsum("bnst,btnd->bsnd", ds, k), dk, dv]


def wide(tensor) -> np.ndarray:
    """The values of a tensor in float64."""
    return tensor.astype("float32").numpy().astype(np.float64)


def errors(results, baseline, truth, part) -> list[list[float] | None]:
    """For each result: its largest error, that of the ``baseline`` of one rank, and the largest value.

    ``part(x)``: this rank's part of a whole. A result of None is a missing gradient.
    """
    rows = []
    for result, single, true in zip(results, baseline, truth, strict=True):
        if result is None:
            rows.append(None)
            continue
        error, own = np.abs(wide(result) - part(true)).max(), np.abs(wide(single) - true).max()
        rows.append([float(error), float(own), float(np.abs(true).max())])
    return rows
