"""Random row indices of every form, and dense attention in float64 with its gradients.

A form is whether they are causal and their number of columns. Half of the tensors are of a kind that a sparse
mode expresses, in random sizes and written in random ways; the others are any numbers.

Legend: B batch, H 1, Nkv or N heads, S queries and keys, D head size.
"""

import numpy as np

FORMS = [(True, 1), (True, 2), (False, 2), (False, 4)]
NAMES = ("out", "dq", "dk", "dv")


def cuts(random, size: int) -> list[int]:
    """Where documents begin, and the end of the last one."""
    inner = random.choice(np.arange(1, size), min(size - 1, int(random.integers(0, 5))), replace=False)
    return [0, *sorted(inner.tolist()), size]


def intervals(random, size: int):
    """The rows first <= i < end that see each key, of a random kind: two arrays [S]. Causal: first is j."""
    j = np.arange(size)
    kind = random.choice(["documents", "window", "shared question", "padding", "hole"])
    ends = cuts(random, size)
    first, end = np.repeat(ends[:-1], np.diff(ends)), np.repeat(ends[1:], np.diff(ends))
    if kind == "window":
        end = np.minimum(end, j + 1 + int(random.integers(0, size)))
        first = np.maximum(first, j - int(random.integers(0, size)))
    if kind == "shared question":
        question = ends[1]
        end = np.where(j < question, size, end)
    if kind in ("padding", "hole"):
        start = ends[-2] if kind == "padding" else int(random.integers(0, size))
        stop = size if kind == "padding" else int(random.integers(start, size + 1))
        inside = (j >= start) & (j < stop)
        first, end = np.where(inside, j, first), np.where(inside, j - random.integers(0, j + 1), end)
    return first, end


def prefixes(random, size: int):
    length = int(random.integers(0, size + 1))
    return np.where(np.arange(size) < length, 0, np.arange(size)), np.full(size, size)


def structured(random, causal: bool, columns: int, batch: int, size: int) -> np.ndarray:
    """[B, 1, S, columns]: every row of the batch draws its kind."""
    rows = []
    for _ in range(batch):
        first, end = intervals(random, size) if causal or random.random() < 0.7 else prefixes(random, size)
        if not causal and random.random() < 0.3:
            first = np.maximum(first, np.arange(size))  # causal, though written without causal
        row = {
            (True, 1): [end],
            (True, 2): [end, np.full(size, size)],
            (False, 2): [end, first],
            (False, 4): [end, np.full(size, size), np.zeros(size, int), first],
        }[causal, columns]
        rows.append(np.stack(row, -1)[None])
    return np.stack(rows).astype(np.int32)


def draw(random, causal: bool, columns: int, heads=(4, 2), largest=40):
    """(indices, number of queries)."""
    batch, key_len = int(random.integers(1, 4)), int(random.integers(1, largest))
    if random.random() < 0.5:
        return structured(random, causal, columns, batch, key_len), key_len
    query_len = key_len if random.random() < 0.5 else int(random.integers(1, largest))
    shape = batch, int(random.choice((1, *heads[::-1]))), key_len, columns
    return random.integers(0, query_len + 1, shape).astype(np.int32), query_len


def tensors(random, indices, query_len: int, heads=(4, 2), dim=16):
    """query, key, value and the gradient of out, [B, S, N, D], in values that 16 bits hold exactly."""
    batch, _, key_len, _ = indices.shape
    sizes = (query_len, heads[0]), (key_len, heads[1]), (key_len, heads[1]), (query_len, heads[0])
    return [np.round(random.standard_normal((batch, *size, dim)) * 32) / 32 for size in sizes]


def dense(query, key, value, out_grad, hidden):
    """out, dq, dk, dv [B, S, N, D] in float64; ``hidden`` [B, N, Sq, Skv]. Fully masked rows give zeros."""
    q, k, v, g = (x.transpose(0, 2, 1, 3) for x in (query, key, value, out_grad))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(groups, 1), v.repeat(groups, 1)
    scale = q.shape[-1] ** -0.5
    scores = np.where(hidden, -np.inf, scale * q @ k.swapaxes(-1, -2))
    highest = np.maximum(scores.max(-1, keepdims=True), -1e300)
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    dp = g @ v.swapaxes(-1, -2)
    ds = scale * p * (dp - (dp * p).sum(-1, keepdims=True))
    dk, dv = (
        x.reshape(len(x), -1, groups, *x.shape[2:]).sum(2)
        for x in (ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g)
    )
    return [x.transpose(0, 2, 1, 3) for x in (p @ v, ds @ k, dk, dv)]
