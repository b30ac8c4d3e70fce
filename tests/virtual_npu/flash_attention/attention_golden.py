"""References of the attention tests: the formula in float64, and plain Paddle operators.

Tolerances are not chosen: the operator may be at most twice as far from the golden as plain Paddle operators
(matmul, where, softmax) in the same precision are, plus one rounding of the largest value.

Shapes: B batch, S sequence, N heads, D head size; q query side, k key side. A key is ``hidden`` by the mask
or ``outside`` of the band. Keys outside take no part. A row whose keys inside are all hidden is their uniform
average, and its scores are constants.
"""

from dataclasses import dataclass

import numpy as np
import paddle

EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half a unit in the last place of 1


@dataclass
class Result:
    out: np.ndarray
    query_grad: np.ndarray
    key_grad: np.ndarray
    value_grad: np.ndarray
    softmax_max: np.ndarray  # [B, N, Sq]
    softmax_sum: np.ndarray


def attention(query, key, value, out_grad, hidden=None, next_tokens=None, dropout_factor=1.0) -> Result:
    """query, out_grad [B, Sq, Nq, D]; key, value [B, Sk, Nk, D]; hidden and dropout_factor broadcast to
    [B, Nq, Sq, Sk]; a key j is outside of the band of query i if j > i + next_tokens."""
    b, sq, nq, d = query.shape
    sk, nk = key.shape[1:3]
    q, do = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (query, out_grad))
    k, v = (
        np.repeat(np.asarray(x, np.float64).transpose(0, 2, 1, 3), nq // nk, axis=1) for x in (key, value)
    )
    hidden = np.broadcast_to(np.zeros((), bool) if hidden is None else hidden, (b, nq, sq, sk))
    inside = np.ones((sq, sk), bool)
    if next_tokens is not None:
        inside = np.arange(sk)[None, :] <= np.arange(sq)[:, None] + next_tokens
    visible = inside & ~hidden
    constant = ~visible.any(-1, keepdims=True)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(d)
    scores = np.where(visible, scores, np.where(constant & inside, 0.0, -np.inf))
    row_max = scores.max(-1, keepdims=True)
    exponential = np.exp(scores - row_max)
    row_sum = exponential.sum(-1, keepdims=True)
    probability = exponential / row_sum
    out = (probability * dropout_factor) @ v
    v_grad = (probability * dropout_factor).swapaxes(-1, -2) @ do
    p_grad = (do @ v.swapaxes(-1, -2)) * dropout_factor
    score_grad = probability * (p_grad - (p_grad * probability).sum(-1, keepdims=True))
    score_grad = np.where(constant, 0.0, score_grad) / np.sqrt(d)
    k_grad = score_grad.swapaxes(-1, -2) @ q
    grouped = [x.reshape(b, nk, nq // nk, sk, d).sum(2).transpose(0, 2, 1, 3) for x in (k_grad, v_grad)]
    return Result(
        out.transpose(0, 2, 1, 3),
        (score_grad @ k).transpose(0, 2, 1, 3),
        *grouped,
        row_max[..., 0],
        row_sum[..., 0],
    )


def attention_varlen(
    query, key, value, out_grad, query_ends, key_ends, hidden=None, next_tokens=None
) -> Result:
    """The same for [T, N, D] and cumulative lengths; ``hidden`` is [longest Sq, longest Sk]."""
    parts = []
    for q0, q1, k0, k1 in zip([0, *query_ends], query_ends, [0, *key_ends], key_ends, strict=False):
        if q1 == q0:  # no query: nothing but zeros for its keys
            zeros = np.zeros((1, k1 - k0, *key.shape[1:]))
            empty = np.zeros((1, 0, *query.shape[1:]))
            statistics = np.zeros((1, query.shape[1], 0))
            parts.append(Result(empty, empty, zeros, zeros, statistics, statistics))
            continue
        part = hidden if hidden is None else hidden[: q1 - q0, : k1 - k0]
        tensors = query[None, q0:q1], key[None, k0:k1], value[None, k0:k1], out_grad[None, q0:q1]
        parts.append(attention(*tensors, part, next_tokens))
    joined = [np.concatenate([getattr(p, name)[0] for p in parts]) for name in list(vars(parts[0]))[:4]]
    statistics = [np.concatenate([getattr(p, n)[0].T for p in parts]) for n in ("softmax_max", "softmax_sum")]
    return Result(*joined, *statistics)


def composed(q, k, v, hidden=None):
    """Plain Paddle operators, every one of them rounding to the tensors' precision."""
    repeats = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose([0, 2, 1, 3]) for x in (q, k, v))
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, axis=1) for x in (k, v))
    scores = paddle.matmul(q, k, transpose_y=True) * (q.shape[-1] ** -0.5)
    if hidden is not None:
        scores = paddle.where(hidden, paddle.full([], -30000.0, scores.dtype), scores)
    probability = paddle.nn.functional.softmax(scores, axis=-1)
    return paddle.matmul(probability, v).transpose([0, 2, 1, 3])


def assert_close(actual, baseline, exact, dtype, what):
    exact = np.asarray(exact)
    assert np.isfinite(actual).all(), what
    allowed = 2 * np.abs(baseline - exact).max(initial=0) + EPSILON[dtype] * np.abs(exact).max(initial=0)
    error = np.abs(actual - exact).max(initial=0)
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g}"
