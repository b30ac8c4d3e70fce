"""Attention of one sequence. S tokens, N heads of D; masks: full, causal, band, prefix, documents.

With a mask, only blocks with a visible score count.
"""

import functools
from dataclasses import dataclass

import numpy as np

from .base import Work, spread_over, uniform

BLOCK = 64  # scores are computed, or skipped, in blocks of this size
BAND = 511  # number of visible keys before the query
MASKS = ("full", "causal", "band", "prefix", "documents")


@dataclass(frozen=True)
class Attention(Work):
    tokens: int
    heads: int
    head_dim: int
    mask: str = "causal"

    operator, registered = "attention", "flash_attention"
    variables = ("q", "k", "v")

    @property
    def label(self):
        return f"S{self.tokens} N{self.heads} D{self.head_dim} {self.mask}"

    @property
    def lengths(self) -> list[int]:
        """The lengths of the documents: various sizes, the same in every run."""
        whole = self.tokens
        parts = [whole // 4, whole // 8, whole // 3, whole // 16, whole // 10]
        return [*parts, whole - sum(parts)]

    def visible(self, queries, keys):
        """bool: whether the queries (a column of indices) see the keys (a row)."""
        past = keys <= queries
        if self.mask == "full":
            return np.broadcast_to(True, past.shape)
        if self.mask == "band":
            return past & (keys >= queries - BAND)
        if self.mask == "prefix":
            return past | (keys < self.tokens // 4)
        if self.mask == "documents":
            ends = np.cumsum(self.lengths)
            return past & (np.searchsorted(ends, queries, "right") == np.searchsorted(ends, keys, "right"))
        return past

    @functools.cache  # noqa: B019 (works are few)
    def computed(self) -> float:
        """The fraction of blocks with a visible score."""
        i, j = np.arange(self.tokens)[:, None], np.arange(self.tokens)[None]
        edges = np.arange(0, self.tokens, BLOCK)
        seen = np.logical_or.reduceat(np.logical_or.reduceat(self.visible(i, j), edges, 0), edges, 1)
        return float(seen.mean())

    def arrays(self, random):
        shape = (1, self.tokens, self.heads, self.head_dim)
        return {name: uniform(random, *shape) for name in ("q", "k", "v", "dout")}

    def samples(self, name):
        return (0, spread_over(self.tokens), self.heads - 1)

    def golden(self, arrays, outputs, backward):
        """Golden values of the last head. The gradients of keys and values sum over all queries, in
        blocks."""
        q, k, v, dout = (arrays[name][0, :, -1].astype(np.float64) for name in ("q", "k", "v", "dout"))
        rows, keys, scale = self.samples("out")[1], np.arange(self.tokens)[None], self.head_dim**-0.5

        def probabilities(queries):
            scores = np.where(self.visible(queries[:, None], keys), q[queries] @ k.T * scale, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            return weights / weights.sum(1, keepdims=True)

        weights = probabilities(rows)
        out = weights @ v
        if not backward:
            return {"out": out}

        def dscores(weights, queries):
            dweights = dout[queries] @ v.T
            return weights * (dweights - (weights * dweights).sum(1, keepdims=True)) * scale

        truth = {"out": out, "dq": dscores(weights, rows) @ k, "dk": 0.0, "dv": 0.0}
        for start in range(0, self.tokens, 512):
            queries = np.arange(start, min(start + 512, self.tokens))
            weights = probabilities(queries)
            truth["dv"] += weights[:, rows].T @ dout[queries]
            truth["dk"] += dscores(weights, queries)[:, rows].T @ q[queries]
        return truth

    @property
    def cost_sizes(self):
        sizes = {"tokens": self.tokens, "heads": self.heads, "head_dim": self.head_dim}
        return {**sizes, "computed": self.computed()}

    def memory(self, contender, item_size, backward):
        if contender in ("composed", "paddle"):  # several score matrices
            return self.heads * self.tokens**2 * item_size * (5 if backward else 3)
        return 3 * self.cost(item_size, backward).bytes

    def paddle(self, tensors, contender):
        import paddle

        from paddle_fused import flash_attention, masks

        q, k, v = (tensors[name] for name in self.variables)
        if contender == "paddle":
            attend = paddle.nn.functional.scaled_dot_product_attention
            if self.mask in ("full", "causal"):
                return lambda: (attend(q, k, v, is_causal=self.mask == "causal"),)
            mask = paddle.to_tensor(self._matrix()[None, None])
            return lambda: (attend(q, k, v, mask),)
        mask = {
            "full": lambda: None,
            "causal": masks.causal,
            "band": lambda: masks.band(BAND, 0),
            "prefix": lambda: masks.prefix(self.tokens // 4),
            "documents": lambda: masks.documents(self.lengths),
        }[self.mask]()
        return lambda: (flash_attention(q, k, v, mask),)

    def torch(self, tensors):
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        is_causal, mask = self.mask == "causal", None
        if self.mask not in ("full", "causal"):
            mask = torch.from_numpy(self._matrix())

        def run(t):
            return (scaled_dot_product_attention(t["q"], t["k"], t["v"], mask, is_causal=is_causal),)

        return run

    def _matrix(self):
        return np.array(self.visible(np.arange(self.tokens)[:, None], np.arange(self.tokens)[None]))

    def from_torch(self, name, array):
        """Convert from torch's layout [B, N, S, D]."""
        return array.swapaxes(1, 2)

    to_torch = from_torch
