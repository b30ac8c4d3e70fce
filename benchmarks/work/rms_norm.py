"""RMSNorm, and RMSNorm of a sum. T tokens, H hidden."""

from dataclasses import dataclass

import numpy as np

from .base import Unavailable, Work, blocks, spread_over, uniform

EPSILON = 1e-6


@dataclass(frozen=True)
class RmsNorm(Work):
    tokens: int
    hidden: int

    operator = "rms_norm"
    variables = ("x", "weight")

    def arrays(self, random):
        shape = (self.tokens, self.hidden)
        return {
            "x": uniform(random, *shape),
            "weight": 1 + np.float32(0.1) * uniform(random, self.hidden),
            "dout": uniform(random, *shape),
        }

    def samples(self, name):
        return (spread_over(self.hidden if name == "dweight" else self.tokens),)

    def golden(self, arrays, outputs, backward):
        x, dout = arrays["x"], arrays["dout"]
        out, dx = norm_rows(x, arrays["weight"], dout, self.samples("out")[0])
        dweight = norm_dweight(x, dout, self.samples("dweight")[0]) if backward else None
        return {"out": out, "dx": dx, "dweight": dweight}

    def paddle(self, tensors, contender):
        import paddle_fused

        if contender == "paddle":
            raise Unavailable("Paddle's fused_rms_norm has no gradient on the CPU")
        x, weight = tensors["x"], tensors["weight"]
        return lambda: (paddle_fused.rms_norm(x, weight, EPSILON),)

    def torch(self, tensors):
        from torch.nn.functional import rms_norm

        return lambda t: (rms_norm(t["x"], (self.hidden,), t["weight"], EPSILON),)


@dataclass(frozen=True)
class AddRmsNorm(RmsNorm):
    operator = "add_rms_norm"
    outputs = ("out", "sum")
    variables = ("x", "residual", "weight")

    def arrays(self, random):
        shape = (self.tokens, self.hidden)
        return {
            **super().arrays(random),
            "residual": uniform(random, *shape),
            "dsum": uniform(random, *shape),
        }

    def golden(self, arrays, outputs, backward):
        # The sum is rounded before its norm is computed. outputs["sum"] is compared with the exact sum, and
        # the norm with that of the rounded sum, which float32 addition produces for both dtypes.
        rows = self.samples("out")[0]
        total = arrays["x"] + arrays["residual"]
        out, dx = norm_rows(total, arrays["weight"], arrays["dout"], rows)
        dx = dx + arrays["dsum"][rows]
        truth = {"out": out, "sum": total[rows], "dx": dx, "dresidual": dx}
        if backward:
            truth["dweight"] = norm_dweight(total, arrays["dout"], self.samples("dweight")[0])
        return truth

    def paddle(self, tensors, contender):
        import paddle_fused

        if contender == "paddle":
            raise Unavailable("Paddle's fused_rms_norm has no gradient on the CPU")
        x, residual, weight = (tensors[name] for name in self.variables)
        return lambda: paddle_fused.add_rms_norm(x, residual, weight, EPSILON)

    def torch(self, tensors):
        from torch.nn.functional import rms_norm

        def run(t):
            total = t["x"] + t["residual"]
            return rms_norm(total, (self.hidden,), t["weight"], EPSILON), total

        return run


def norm_rows(x, weight, dout, rows):
    """(out, dx) in float64 of some rows."""
    x, weight, dout = x[rows].astype(np.float64), weight.astype(np.float64), dout[rows].astype(np.float64)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    normal, dnormal = x * rstd, dout * weight
    return normal * weight, rstd * (dnormal - normal * (dnormal * normal).mean(-1, keepdims=True))


def norm_dweight(x, dout, columns):
    """The sum over all rows of dout * x * rstd in float64, of some columns."""
    total = np.zeros(len(columns))
    for rows in blocks(*x.shape):
        wide = x[rows].astype(np.float64)
        rstd = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)
        total += (dout[rows][:, columns] * (wide[:, columns] * rstd)).sum(0)
    return total
