"""The Llama's sizes, its weights and tokens, and the cost of a step.

Shapes: V vocabulary, H hidden, I intermediate, B batch, S length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DEVIATION = 0.02  # of the initial weights


@dataclass(frozen=True)
class LlamaSize:
    hidden: int = 768
    layers: int = 12
    vocabulary: int = 16000
    length: int = 1024
    batch: int = 1
    heads: int = 12
    intermediate: int = 2048

    @property
    def label(self) -> str:
        return f"H{self.hidden} L{self.layers} V{self.vocabulary} S{self.length} B{self.batch}"

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights by name; those of linear layers are [in, out]."""
        h, i, v = self.hidden, self.intermediate, self.vocabulary
        layer = {
            **dict.fromkeys(("query", "key", "value", "output"), (h, h)),
            **dict.fromkeys(("gate", "up"), (h, i)),
            "down": (i, h),
            **dict.fromkeys(("attention_norm", "mlp_norm"), (h,)),
        }
        named = {f"{number}.{name}": shape for number in range(self.layers) for name, shape in layer.items()}
        return {"embedding": (v, h), **named, "norm": (h,), "head": (h, v)}

    def weights(self) -> dict[str, np.ndarray]:
        """The initial weights in float32, the same in every process."""
        random = np.random.default_rng(0)
        return {
            name: random.standard_normal(shape, np.float32) * np.float32(DEVIATION)
            if len(shape) > 1
            else np.ones(shape, np.float32)
            for name, shape in self.shapes().items()
        }

    def samples(self) -> np.ndarray:
        """Random tokens [B, S + 1]: inputs, and, shifted by one, the labels."""
        return np.random.default_rng(1).integers(0, self.vocabulary, (self.batch, self.length + 1))

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes().values())

    @property
    def flops(self) -> int:
        """6 per token and multiplied weight, and the causal half of attention's two products.

        The backward counts twice the forward; recomputation in the backward does not count.
        """
        multiplied = sum(int(np.prod(shape)) for name, shape in self.shapes().items() if name != "embedding")
        attention = 2 * self.length**2 * self.hidden * self.layers * self.batch  # forward
        return 6 * self.tokens * multiplied + 3 * attention
