"""SwiGLU: silu(x) * y. T tokens, H hidden."""

from dataclasses import dataclass

import numpy as np

from .base import Work, spread_over, uniform


@dataclass(frozen=True)
class SwiGLU(Work):
    tokens: int
    hidden: int

    operator = "swiglu"
    variables = ("x", "y")

    def arrays(self, random):
        return {name: uniform(random, self.tokens, self.hidden) for name in ("x", "y", "dout")}

    def samples(self, name):
        return (spread_over(self.tokens),)

    def golden(self, arrays, outputs, backward):
        x, y, dout = (arrays[name][self.samples(name)].astype(np.float64) for name in ("x", "y", "dout"))
        sigmoid = 1 / (1 + np.exp(-x))
        dx = dout * y * sigmoid * (1 + x * (1 - sigmoid))
        return {"out": x * sigmoid * y, "dx": dx, "dy": dout * x * sigmoid}

    def paddle(self, tensors, contender):
        x, y = tensors["x"], tensors["y"]
        if contender == "paddle":
            from paddle_fused.paddle_release import swiglu
        else:
            from paddle_fused import swiglu
        return lambda: (swiglu(x, y),)

    def torch(self, tensors):
        from torch.nn.functional import silu

        return lambda t: (silu(t["x"]) * t["y"],)
