"""A decoder on sequences of different lengths, with several strategies: padding or packing.

The model: token and position embeddings; blocks of LayerNorm without bias, attention, a residual, LayerNorm,
a GELU layer of four times the width and a residual; a linear layer and the cross entropy, which ignores
padding. Evaluation is forward only and attends in both directions; training is causal and ends with a step of
SGD.

    padding            every sequence is padded to the maximum length; padding is masked in attention
    dynamic padding    ... to the longest of the batch
    packed varlen      the sequences are concatenated; attention gets their boundaries
    packed mask        the same with a block-diagonal mask
    packed loop        the same with one attention call per sequence

torch and plain Paddle differ from paddle_fused in their calls, not in their results.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .base import Cost, Unavailable, Work, uniform


@dataclass(frozen=True)
class Decoder(Work):
    strategy: str
    is_training: bool
    batch: int
    longest: int
    width: int
    depth: int
    vocabulary: int

    operator = "decoder"
    outputs = ("loss",)
    head_dim = 64
    epsilon = 1e-5
    rate = 0.1  # of SGD
    pad = 0
    padded = ("padding", "dynamic padding")  # the strategies whose sequences have one length

    @property
    def label(self):
        sizes = " ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self)[2:])
        return f"{'train' if self.is_training else 'eval'}, {self.strategy}, {sizes}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters."""
        c = self.width
        named_shapes = {"embedding": (self.vocabulary, c), "position": (self.longest, c)}
        for i in range(self.depth):
            named_shapes |= {f"{i}.norm1": (c,), f"{i}.norm2": (c,)}
            for name, inner, outer in (
                ("qkv", c, 3 * c),
                ("proj", c, c),
                ("fc1", c, 4 * c),
                ("fc2", 4 * c, c),
            ):
                named_shapes |= {f"{i}.{name}": (inner, outer), f"{i}.{name}.bias": (outer,)}
        return {**named_shapes, "output": (c, self.vocabulary), "output.bias": (self.vocabulary,)}

    def arrays(self, random):
        lengths = random.integers(1, self.longest, self.batch)
        drawn_arrays = {
            name: random.integers(1, self.vocabulary, lengths.sum()) for name in ("tokens", "targets")
        }
        for name, shape in self.shapes.items():
            drawn = uniform(random, *shape) * np.float32(shape[0] ** -0.5 if len(shape) == 2 else 0.1)
            drawn_arrays[name] = drawn + np.float32("norm" in name)
        return {**drawn_arrays, "lengths": lengths}

    def batched(self, arrays):
        """(tokens, targets, positions, lengths) for the strategy: [B, S], or [T] if packed."""
        lengths = arrays["lengths"]
        positions = np.concatenate([np.arange(length) for length in lengths])
        flat = [arrays["tokens"], arrays["targets"], positions]
        if self.strategy not in self.padded:
            return *flat, lengths
        size = self.longest if self.strategy == "padding" else lengths.max()
        rows = np.repeat(np.arange(self.batch), lengths)
        padded = np.full((3, self.batch, size), self.pad)
        padded[2] = np.arange(size)
        for array, values in zip(padded[:2], flat[:2], strict=True):
            array[rows, positions] = values
        return *padded, lengths

    def samples(self, name):
        return ()

    def golden(self, arrays, outputs, backward):
        """The loss in float64, one sequence after the other."""
        p = {name: array.astype(np.float64) for name, array in arrays.items() if name in self.shapes}
        ends = np.cumsum(arrays["lengths"])
        total = 0.0
        for start, end in zip(ends - arrays["lengths"], ends, strict=True):
            x = p["embedding"][arrays["tokens"][start:end]] + p["position"][: end - start]
            for i in range(self.depth):
                mixed = self._attended(_norm(x) * p[f"{i}.norm1"] @ p[f"{i}.qkv"] + p[f"{i}.qkv.bias"])
                x = x + mixed @ p[f"{i}.proj"] + p[f"{i}.proj.bias"]
                inner = _norm(x) * p[f"{i}.norm2"] @ p[f"{i}.fc1"] + p[f"{i}.fc1.bias"]
                x = x + _gelu(inner) @ p[f"{i}.fc2"] + p[f"{i}.fc2.bias"]
            logits = x @ p["output"] + p["output.bias"]
            largest = logits.max(1)
            sums = np.log(np.exp(logits - largest[:, None]).sum(1)) + largest
            total += (sums - logits[np.arange(end - start), arrays["targets"][start:end]]).sum()
        return {"loss": total / ends[-1]}

    def _attended(self, qkv):
        length = len(qkv)
        q, k, v = (part.reshape(length, -1, self.head_dim) for part in np.split(qkv, 3, 1))
        scores = np.einsum("qnd,knd->nqk", q, k, optimize=True) * self.head_dim**-0.5
        if self.is_training:
            scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("nqk,knd->qnd", weights, v, optimize=True).reshape(length, -1)

    def cost(self, item_size, backward):
        """FLOPs without padding: the matmuls with the weights, and the attention of each sequence to
        itself."""
        lengths = self.arrays(np.random.Generator(np.random.PCG64(0)))["lengths"].astype(float)
        weights = sum(np.prod(shape) for name, shape in self.shapes.items() if len(shape) == 2)
        weights -= (self.vocabulary + self.longest) * self.width  # embeddings are lookups
        products = 2 * lengths.sum() * weights
        attention = 4 * (lengths**2).sum() * self.width * self.depth * (0.5 if self.is_training else 1)
        times, attended = (3, 3.5) if self.is_training else (1, 1)
        read = weights * item_size * times
        return Cost(int(read), int(products * times + attention * attended))

    def paddle(self, tensors, contender):
        from .decoder_paddle import step

        return step(self, tensors, contender)

    def torch(self, tensors):
        from .decoder_torch import Step

        return Step(self, tensors)

    def compiled_by_torch(self, run):
        return run.compiled()

    def refuse(self, strategies):
        """Raise Unavailable if a contender does not support the strategy."""
        if self.strategy not in strategies:
            raise Unavailable("not supported")


def _norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + Decoder.epsilon)


def _gelu(x):
    """x times the cumulative distribution function of the normal distribution."""
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf, otypes=[float])(x / 2**0.5))
