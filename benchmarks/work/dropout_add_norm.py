"""pre = dropout(x0) + residual and its LayerNorm or RMSNorm, both returned, as in a transformer block."""

from dataclasses import dataclass

import numpy as np

from .base import Unavailable, Work, spread_over, uniform

DROPOUT = 0.1
EPSILON = 1e-5


@dataclass(frozen=True)
class DropoutAddLayerNorm(Work):
    tokens: int
    hidden: int

    operator = "dropout_add_layer_norm"
    outputs = ("out", "pre")
    variables = ("x0", "residual", "weight", "bias")
    is_random = True
    is_rms = False

    def arrays(self, random):
        shape = (self.tokens, self.hidden)
        drawn = {name: uniform(random, *shape) for name in ("x0", "residual", "dout", "dpre")}
        drawn["weight"] = 1 + np.float32(0.1) * uniform(random, self.hidden)
        return {**drawn, "bias": uniform(random, self.hidden)}

    def samples(self, name):
        return (spread_over(self.hidden if name in ("dweight", "dbias") else self.tokens),)

    def golden(self, arrays, outputs, backward):
        """Dropped elements are visible in pre. weight's gradient needs all of pre, so it is not compared."""
        rows = self.samples("out")[0]
        x0, residual, dout, dpre = (
            arrays[name][rows].astype(np.float64) for name in ("x0", "residual", "dout", "dpre")
        )
        weight = arrays["weight"].astype(np.float64)
        kept = np.abs(outputs["pre"] - residual) > np.abs(x0) / (1 - DROPOUT) / 2
        # Dropped elements that rounding hides in pre are visible in the gradient of x0.
        is_seen = np.abs(x0) > np.abs(outputs["pre"]) / 32
        kept = np.where(is_seen, kept, outputs["dx0"] != 0) if backward else kept
        fraction = kept[is_seen].mean()
        deviation = (DROPOUT * (1 - DROPOUT) / is_seen.sum()) ** 0.5
        if abs(fraction - (1 - DROPOUT)) > 6 * deviation:
            raise ValueError(f"dropout kept {fraction:.4f} of the elements instead of {1 - DROPOUT:g}")
        factor = kept / (1 - DROPOUT)
        pre = x0 * factor + residual
        seen = outputs["pre"].astype(np.float64)  # the norm is computed from the rounded sum
        centred = seen if self.is_rms else seen - seen.mean(-1, keepdims=True)
        rstd = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
        normal, dnormal = centred * rstd, dout * weight
        inner = dnormal - normal * (dnormal * normal).mean(-1, keepdims=True)
        if not self.is_rms:
            inner = inner - dnormal.mean(-1, keepdims=True)
        total = inner * rstd + dpre
        truth = {
            "out": normal * weight + arrays["bias"],
            "pre": pre,
            "dx0": total * factor,
            "dresidual": total,
        }
        if backward:
            columns = self.samples("dbias")[0]
            truth["dbias"] = arrays["dout"][:, columns].sum(0, dtype=np.float64)
        return truth

    def paddle(self, tensors, contender):
        import paddle_fused

        if contender == "paddle":
            raise Unavailable("Paddle's fused_bias_dropout_residual_layer_norm has no kernel on the CPU")
        function = getattr(paddle_fused, self.operator)
        x0, residual, weight, bias = (tensors[name] for name in self.variables)
        return lambda: function(x0, residual, weight, bias, DROPOUT, EPSILON, prenorm=True)

    def torch(self, tensors):
        import torch.nn.functional as F

        def run(t):
            pre = F.dropout(t["x0"], DROPOUT) + t["residual"]
            if self.is_rms:
                return F.rms_norm(pre, (self.hidden,), t["weight"], EPSILON) + t["bias"], pre
            return F.layer_norm(pre, (self.hidden,), t["weight"], t["bias"], EPSILON), pre

        return run


@dataclass(frozen=True)
class DropoutAddRmsNorm(DropoutAddLayerNorm):
    operator = "dropout_add_rms_norm"
    is_rms = True
