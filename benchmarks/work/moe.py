"""An MoE layer with SwiGLU experts. T tokens, H hidden, I intermediate, K of E experts per token."""

from dataclasses import dataclass

import numpy as np

from paddle_fused.registry import Cost

from .base import Unavailable, Work, spread_over, uniform


@dataclass(frozen=True)
class Moe(Work):
    tokens: int
    hidden: int
    inner: int
    experts: int
    top_k: int

    operator = "moe"
    variables = ("hidden", "probs", "gate_up", "down")
    keep_float32 = ("probs",)

    @property
    def label(self):
        return f"E{self.experts} top-{self.top_k} {self.tokens}x{self.hidden}x{self.inner}"

    def arrays(self, random):
        chosen = np.argsort(random.random((self.tokens, self.experts)), 1)[:, : self.top_k]
        probs = random.random((self.tokens, self.top_k), dtype=np.float32) + np.float32(0.1)
        e, h, i = self.experts, self.hidden, self.inner
        return {
            "hidden": uniform(random, self.tokens, h),
            "probs": probs / probs.sum(1, keepdims=True),
            "indices": np.ascontiguousarray(chosen),
            "gate_up": uniform(random, e, h, 2 * i) * np.float32(h**-0.5),
            "down": uniform(random, e, i, h) * np.float32(i**-0.5),
            "dout": uniform(random, self.tokens, h),
        }

    def samples(self, name):
        if name in ("dgate_up", "ddown"):  # of the last expert, some columns
            columns = spread_over(self.hidden if name == "ddown" else 2 * self.inner)
            return (slice(self.experts - 1, None), slice(None), columns)
        return (spread_over(self.tokens),)

    def golden(self, arrays, outputs, backward):
        rows, dout = self.samples("out")[0], arrays["dout"].astype(np.float64)
        out, dhidden = np.zeros((2, len(rows), self.hidden))
        dprobs = np.zeros((len(rows), self.top_k))
        for slot in range(self.top_k):
            for expert in range(self.experts):
                here = np.flatnonzero(arrays["indices"][rows, slot] == expert)
                if len(here) == 0:
                    continue
                tokens, prob = rows[here], arrays["probs"][rows[here], slot, None].astype(np.float64)
                expert_output, dhidden_here, *_ = self._expert(arrays, expert, tokens, dout[tokens] * prob)
                out[here] += expert_output * prob
                dhidden[here] += dhidden_here
                dprobs[here, slot] = (expert_output * dout[tokens]).sum(1)
        truth = {"out": out, "dhidden": dhidden, "dprobs": dprobs}
        if backward:
            last = self.experts - 1
            tokens, slots = np.nonzero(arrays["indices"] == last)
            dmade = dout[tokens] * arrays["probs"][tokens, slots][:, None]
            _, _, inner, dboth = self._expert(arrays, last, tokens, dmade)
            columns = self.samples("dgate_up")[2]
            truth["dgate_up"] = (arrays["hidden"][tokens].astype(np.float64).T @ dboth[:, columns])[None]
            truth["ddown"] = (inner.T @ dmade[:, self.samples("ddown")[2]])[None]
        return truth

    def _expert(self, arrays, expert, tokens, dmade):
        """(outputs of the tokens, their gradient, inner activations, gradient of gate and up)."""
        gate_up, down = (arrays[name][expert].astype(np.float64) for name in ("gate_up", "down"))
        both = arrays["hidden"][tokens].astype(np.float64) @ gate_up
        gate, up = both[:, : self.inner], both[:, self.inner :]
        sigmoid = 1 / (1 + np.exp(-gate))
        inner, dinner = gate * sigmoid * up, dmade @ down.T
        dgate = dinner * up * sigmoid * (1 + gate * (1 - sigmoid))
        dboth = np.concatenate([dgate, dinner * gate * sigmoid], 1)
        return inner @ down, dboth @ gate_up.T, inner, dboth

    def cost(self, item_size, backward):
        """Each of the T K rows is multiplied by [H, 2I] and [I, H]; backward has two products of that size.

        Bytes: the weights, and the rows before and after each product.
        """
        rows = self.tokens * self.top_k
        weights = 3 * self.experts * self.hidden * self.inner
        elements = weights + rows * (2 * self.hidden + 4 * self.inner)
        times = 3 if backward else 1
        return Cost(elements * item_size * times, 6 * rows * self.hidden * self.inner * times)

    def paddle(self, tensors, contender):
        from paddle_fused import (
            grouped_matmul,
            moe_token_permute,
            moe_token_unpermute,
            paddle_release,
            swiglu,
        )

        if contender == "paddle":
            raise Unavailable("Paddle's fused_moe has no kernel on the CPU")
        hidden, probs, gate_up, down = (tensors[name] for name in self.variables)
        indices = tensors["indices"]

        def run():
            rows, order = moe_token_permute(hidden, indices)
            counts = paddle_release.counts_of(indices, self.experts)
            inner = swiglu(grouped_matmul(rows, gate_up, counts, 1))
            return (moe_token_unpermute(grouped_matmul(inner, down, counts, 1), order, probs),)

        return run

    def torch(self, tensors):
        import torch
        from torch.nn.functional import grouped_mm, silu

        def run(t):
            order = t["indices"].flatten().argsort(stable=True)
            counts = torch.bincount(t["indices"].flatten(), minlength=self.experts)
            ends = counts.cumsum(0).to(torch.int32)
            both = grouped_mm(t["hidden"][order // self.top_k], t["gate_up"], offs=ends)
            gate, up = both.chunk(2, -1)
            products = grouped_mm(silu(gate) * up, t["down"], offs=ends)
            weighted = products * t["probs"].flatten()[order, None].to(products.dtype)
            out = torch.zeros_like(t["hidden"]).index_add(0, order // self.top_k, weighted)
            return (out,)

        return run
