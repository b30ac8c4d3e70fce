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


def attention(query, key, value, out_grad, hidden, scale: float) -> list[np.ndarray]:
    """out and the gradients of query, key and value. ``hidden``: bool, broadcast to [B, N, S, S]."""
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
