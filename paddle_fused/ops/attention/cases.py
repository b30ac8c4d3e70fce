"""Cases of flash_attention: every layout, mask, grouping of heads and shape of bias.

Legend: B batch, Sq and Skv queries and keys, T tokens, N and Nkv heads, D and Dv head sizes.
"""

from itertools import accumulate

import numpy as np

from paddle_fused import masks
from paddle_fused.masks.modes import UNBOUNDED, SparseMode

from ..case import OpCase
from .op import flash_attention


def golden(query, key, value, hidden=None, bias=None, scale=None):
    """[B, N, Sq, D], [B, Nkv, Skv, D], [B, Nkv, Skv, Dv]; ``hidden`` broadcasts to [B, N, Sq, Skv]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat(groups, 1), value.repeat(groups, 1)
    scores = query @ key.swapaxes(-1, -2)
    scores = (scores if bias is None else scores + bias) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    visible = np.ones(scores.shape, bool) if hidden is None else np.broadcast_to(~hidden, scores.shape)
    highest = np.where(visible, scores, -np.inf).max(-1, keepdims=True, initial=-1e300)
    weights = np.where(visible, np.exp(np.where(visible, scores - highest, 0)), 0)
    total = weights.sum(-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ value


TO_BNSD = {
    "BNSD": lambda x, n: x,
    "BSND": lambda x, n: x.transpose(0, 2, 1, 3),
    "BSH": lambda x, n: x.reshape(*x.shape[:2], n, -1).transpose(0, 2, 1, 3),
    "SBH": lambda x, n: x.reshape(*x.shape[:2], n, -1).transpose(1, 2, 0, 3),
}
FROM_BNSD = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(0, 2, 1, 3),
    "BSH": lambda x: x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1),
    "SBH": lambda x: x.transpose(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1),
}


def batch_case(
    mask,
    layout="BSND",
    batch=2,
    lengths=(33, 33),
    heads=(4, 2),
    dims=(40, 40),
    bias=None,
    scale=None,
    name=None,
) -> OpCase:
    """``lengths`` and ``heads`` are pairs for query and key; ``dims`` is a pair for key and value."""
    (n, n_kv), (d, d_v) = heads, dims
    shapes = {
        key: FROM_BNSD[layout](np.empty((batch, count, length, dim))).shape
        for key, count, length, dim in (
            ("query", n, lengths[0], d),
            ("key", n_kv, lengths[1], d),
            ("value", n_kv, lengths[1], d_v),
        )
    }
    if bias is not None:
        shapes["bias"] = bias
    hidden = None if mask is None else mask.to_dense(*lengths)
    num_heads = n if layout in ("BSH", "SBH") else None

    def compute(arrays):
        tensors = [
            TO_BNSD[layout](arrays[key], m) for key, m in (("query", n), ("key", n_kv), ("value", n_kv))
        ]
        return (FROM_BNSD[layout](golden(*tensors, hidden, arrays.get("bias"), scale)),)

    def call(t):
        options = {"layout": layout, "num_heads": num_heads, "bias": t.get("bias"), "scale": scale}
        return (flash_attention(t["query"], t["key"], t["value"], mask, **options),)

    title = f"{layout}, {mask!r}, B {batch}, S {lengths}, N {heads}, D {dims}"
    title += "" if bias is None else f", bias {list(bias)}"
    return OpCase(
        operator="flash_attention",
        name=name or title,
        arrays=lambda random: {key: random.standard_normal(shape) for key, shape in shapes.items()},
        call=call,
        golden=compute,
        gradients=tuple(shapes),
        is_stable=False,
    )


def packed_case(mask, query_lens, key_lens, heads=(4, 2), dim=16) -> OpCase:
    """Layout TND with cumulative lengths."""
    ends = [[0, *accumulate(lens)] for lens in (query_lens, key_lens)]
    shapes = {
        "query": (sum(query_lens), heads[0], dim),
        "key": (sum(key_lens), heads[1], dim),
        "value": (sum(key_lens), heads[1], dim),
    }

    def compute(arrays):
        out = np.zeros(shapes["query"])
        for s, (q, k) in enumerate(zip(query_lens, key_lens, strict=True)):
            rows, columns = slice(*ends[0][s : s + 2]), slice(*ends[1][s : s + 2])
            q_, k_, v_ = (
                arrays[name][part].transpose(1, 0, 2)[None]
                for name, part in (("query", rows), ("key", columns), ("value", columns))
            )
            if q:
                hidden = None if mask is None else mask.of_sequence(s, query_lens).to_dense(q, k)
                out[rows] = golden(q_, k_, v_, hidden)[0].transpose(1, 0, 2)
        return (out,)

    return OpCase(
        operator="flash_attention",
        name=f"TND, {mask!r}, lengths {query_lens} and {key_lens}, N {heads}, D {dim}",
        arrays=lambda random: {key: random.standard_normal(shape) for key, shape in shapes.items()},
        call=lambda t: (
            flash_attention(
                *(t[key] for key in shapes), mask, layout="TND", cu_seqlens_q=ends[0], cu_seqlens_k=ends[1]
            ),
        ),
        golden=compute,
        gradients=("query", "key", "value"),
        is_stable=False,
    )


def _random_mask(query_len, key_len, heads):
    """Masks a third of the scores, but never the first key."""
    hidden = np.random.default_rng(5).random((2, heads, query_len, key_len)) < 0.3
    hidden[..., 0] = False
    return masks.dense(hidden)


_LENGTHS = [7, 0, 1, 20], [7, 3, 1, 20]
CASES = [
    batch_case(masks.causal()),
    batch_case(None, "BNSD", heads=(4, 1), lengths=(5, 70), dims=(64, 24)),
    batch_case(masks.causal(), "BSH", lengths=(20, 33), bias=(2, 4, 20, 33)),
    batch_case(masks.causal("top_left"), "BSND", lengths=(20, 33), bias=(1, 4, 20, 33)),
    batch_case(masks.band(6, 3), "BNSD", lengths=(40, 33), heads=(3, 3), bias=(2, 3, 1, 33)),
    batch_case(masks.prefix([4, 30]), "SBH", dims=(1, 1)),
    batch_case(
        masks.causal(),
        lengths=(40, 25),
        dims=(16, 16),
        scale=0.2,
        name="causal with queries that see nothing",
    ),
    batch_case(masks.documents([[5, 0, 1, 27], [33]]), "BSND"),
    batch_case(masks.documents([5, 28]) & masks.prefix(3), "BSND", name="documents within a prefix"),
    batch_case(
        _random_mask(33, 20, 4) & masks.band(30, None), "BSND", lengths=(33, 20), name="own mask in a band"
    ),
    packed_case(masks.causal(), *_LENGTHS),
    packed_case(None, *_LENGTHS),
    packed_case(masks.band(4, 0), [7, 1, 20], [9, 1, 24]),
    # CANN's modes to which no single mask type above compiles; npu_fusion_attention accepts them.
    batch_case(SparseMode(5, UNBOUNDED, UNBOUNDED, (4, 30)) & _random_mask(33, 33, 4), name="sparse_mode 5"),
    packed_case(SparseMode(7, UNBOUNDED, -3), [5, 9, 12], [7, 9, 15]),
    packed_case(SparseMode(8, UNBOUNDED, 2), [5, 9, 12], [7, 9, 15]),
]


def _random_case(random) -> OpCase:
    """A small case with any layout and any mask."""
    query_len, key_len = (int(n) for n in random.integers(1, 40, 2))
    n_kv = int(random.integers(1, 4))
    heads = n_kv * int(random.integers(1, 4)), n_kv
    d = int(random.integers(1, 40))
    if random.random() < 0.3:
        return _draw_packed(random, heads, d)
    batch = int(random.integers(1, 4))
    layout = str(random.choice(list(TO_BNSD)))
    shapes = (
        (batch, heads[0], query_len, key_len),
        (batch, heads[0], 1, key_len),
        (1, heads[0], query_len, key_len),
    )
    bias = shapes[int(random.integers(3))] if random.random() < 0.3 else None
    return batch_case(
        _draw_mask(random, batch, heads[0], query_len, key_len),
        layout,
        batch,
        (query_len, key_len),
        heads,
        (d, int(random.integers(1, d + 1))),
        bias,
        float(random.uniform(0.1, 1)) if random.random() < 0.3 else None,
    )


def _draw_mask(random, batch, heads, query_len, key_len):
    kind = int(random.integers(7))
    align = str(random.choice(["bottom_right", "top_left"]))
    if kind == 0:
        return None
    if kind == 1:
        return masks.causal(align)
    if kind == 2:
        return masks.band(int(random.integers(0, 40)), int(random.integers(0, 40)), align)
    if kind == 3:
        return masks.prefix([int(n) for n in random.integers(0, key_len + 1, batch)])
    if kind == 4:
        cuts = np.sort(random.integers(0, key_len + 1, 2))
        lens = np.diff([0, *cuts, key_len]).tolist()
        start = int(random.integers(0, key_len - query_len + 1)) if query_len <= key_len else None
        if start is not None:
            return masks.documents(lens, bool(random.random() < 0.5), query_start=start)
        causal = bool(random.random() < 0.5)
        return masks.documents([query_len], causal, key_seqlens=[key_len], align="top_left")
    hidden = random.random((batch, int(random.choice([1, heads])), query_len, key_len)) < 0.5
    mask = masks.dense(hidden, invalid_rows=True)
    return mask & masks.causal(align) if kind == 5 else mask


def _draw_packed(random, heads, d) -> OpCase:
    lens = [int(n) for n in random.integers(0, 20, random.integers(1, 5))]
    more = [n + int(random.integers(0, 5)) if n else 0 for n in lens]
    return packed_case(
        [None, masks.causal(), masks.causal("top_left"), masks.band(5, 0)][int(random.integers(4))],
        lens,
        more,
        heads,
        d,
    )


RANDOM_CASE = {"flash_attention": _random_case}
