"""Rotary embedding of queries and keys, halves rotated. One sequence of S tokens, N heads of D."""

from dataclasses import dataclass

import numpy as np

from .base import Unavailable, Work, spread_over, uniform


@dataclass(frozen=True)
class Rotary(Work):
    tokens: int
    heads: int
    head_dim: int

    operator, registered = "rotary", "apply_rotary"
    outputs = ("q_out", "k_out")
    variables = ("q", "k")

    def arrays(self, random):
        shape = (1, self.tokens, self.heads, self.head_dim)
        angles = np.outer(np.arange(self.tokens), 1e4 ** -(np.arange(0, self.head_dim, 2) / self.head_dim))
        angles = np.concatenate([angles, angles], 1)
        drawn = {name: uniform(random, *shape) for name in ("q", "k", "dq_out", "dk_out")}
        return {**drawn, "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}

    def samples(self, name):
        return (slice(None), spread_over(self.tokens))

    def golden(self, arrays, outputs, backward):
        rows = self.samples("q")
        cos, sin = (arrays[name][rows[1], None, :].astype(np.float64) for name in ("cos", "sin"))
        q, k, dq, dk = (arrays[name][rows].astype(np.float64) for name in ("q", "k", "dq_out", "dk_out"))
        truth = {name: x * cos + _rotated(x) * sin for name, x in (("q_out", q), ("k_out", k))}
        # The transposed rotation is the rotation by the negative angle.
        return truth | {name: x * cos - _rotated(x * sin) for name, x in (("dq", dq), ("dk", dk))}

    def paddle(self, tensors, contender):
        q, k, cos, sin = (tensors[name] for name in ("q", "k", "cos", "sin"))
        if contender == "paddle":
            raise Unavailable("Paddle's fused_rotary_position_embedding has no kernel on the CPU")
        import paddle_fused

        return lambda: paddle_fused.apply_rotary(q, k, cos, sin)

    def torch(self, tensors):
        import torch

        def rotated(x):
            half = x.shape[-1] // 2
            return torch.cat((-x[..., half:], x[..., :half]), -1)

        def run(t):
            cos, sin = t["cos"][None, :, None], t["sin"][None, :, None]
            return tuple(t[name] * cos + rotated(t[name]) * sin for name in ("q", "k"))

        return run


def _rotated(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)
