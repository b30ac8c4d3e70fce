"""Attention in float64 from its definition, for the tests of context parallelism.

Shapes: B batch, S sequence, N and Nkv heads, D and Dv head sizes.
"""

import math

import numpy as np

from paddle_fused.parity import CEILING, ROUNDING

# Roundings of a merge: difference, exponential, product, sum and quotient of weights, product and sum of
# outputs.
MERGE = 7


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
    p, ds = _weights(query, key, value, out_grad, mask, scale)
    return _sums(p, ds, query, key, value, out_grad)


def _weights(query, key, value, out_grad, mask, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """P and dS, [B, N, S, S]."""
    length = query.shape[1]
    hidden = np.zeros((length, length), bool) if mask is None else mask.to_dense(length)
    hidden = hidden.reshape(-1, 1, length, length)
    k, v = (np.repeat(x, query.shape[2] // x.shape[2], 2) for x in (key, value))
    scores = np.where(hidden, -np.inf, scale * np.einsum("bsnd,btnd->bnst", query, k))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("bsnd,btnd->bnst", out_grad, v)
    return p, scale * p * (dp - (dp * p).sum(-1, keepdims=True))


def _sums(p, ds, query, key, value, out_grad) -> list[np.ndarray]:
    """P V, dS K, dS^T Q and P^T dO, the latter two summed over the heads of a group."""
    groups = query.shape[2] // key.shape[2]
    k, v = (np.repeat(x, groups, 2) for x in (key, value))
    dk, dv = np.einsum("bnst,bsnd->btnd", ds, query), np.einsum("bnst,bsnd->btnd", p, out_grad)
    dk, dv = (x.reshape(*x.shape[:2], key.shape[2], groups, -1).sum(3) for x in (dk, dv))
    return [np.einsum("bnst,btnd->bsnd", p, v), np.einsum("bnst,btnd->bsnd", ds, k), dk, dv]


def wide(tensor) -> np.ndarray:
    """The values of a tensor in float64."""
    return tensor.astype("float32").numpy().astype(np.float64)


def bounds(operands, mask, scale: float, dtype: str, baseline, ranks: int, block_dtype="") -> list[float]:
    """The largest accepted error of each result of ``attention``, computed in blocks on ``ranks`` ranks.

    A result is a sum over blocks. Each block rounds its share to ``block_dtype`` (default: ``dtype``), which
    adds at most u times the sum of absolute terms. Each merge multiplies and adds in float32, with MERGE
    roundings of either sign, so their effect grows with the square root of their number. The sum is rounded
    to ``dtype`` once. All other errors are those of a whole row, hence twice the ``baseline`` of one rank.

    The bound is at most parity's ceiling: CEILING ulps of the largest result or output gradient.
    """
    truth, terms = attention(*operands, mask, scale), _sums_of_terms(*operands, mask, scale)
    of_block = ROUNDING[block_dtype or dtype] + math.sqrt(MERGE * 2 * ranks) * ROUNDING["float32"]
    allowed, output_gradient = [], _largest(operands[3])
    for index, (single, true, sums) in enumerate(zip(baseline, truth, terms, strict=True)):
        bound = 2 * _largest(wide(single) - true) + ROUNDING[dtype] * _largest(true)
        scale_of_result = max(_largest(true), output_gradient if index else 0)
        ceiling = CEILING[dtype] * 2 * ROUNDING[dtype] * scale_of_result
        allowed.append(min(bound + of_block * _largest(sums), ceiling))
    return allowed


def _sums_of_terms(query, key, value, out_grad, mask, scale: float) -> list[np.ndarray]:
    """For each result of ``attention``: the sum of the absolute terms that blocks round and merge.

    out: P |V|. Its error changes dS by up to scale * P * sum_d(|dO| P |V|), which is added to |dS|.
    """
    p, ds = _weights(query, key, value, out_grad, mask, scale)
    operands = [np.abs(x) for x in (query, key, value, out_grad)]
    out = _sums(p, ds, *operands)[0]
    delta = np.einsum("bsnd,bsnd->bns", operands[3], out)
    return _sums(p, np.abs(ds) + scale * p * delta[..., None], *operands)


def _largest(x) -> float:
    return float(np.abs(x).max())


def errors(results, truth, allowed, part) -> list[list[float] | None]:
    """For each result: its largest error and its bound, of ``allowed``.

    ``part(x)``: this rank's part of a whole. A result of None is a missing gradient.
    """
    return [
        None if result is None else [_largest(wide(result) - part(true)), bound]
        for result, true, bound in zip(results, truth, allowed, strict=True)
    ]
