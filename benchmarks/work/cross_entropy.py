"""Cross entropy of logits; of a linear layer's logits; the linear layer. T tokens, H hidden, V vocabulary.

Cross entropy reads the logits; its backward reads them again and writes their gradient. With the linear layer
no tensor of the logits' size needs to be in memory, and arithmetic is the limit: 2 T H V operations forward,
4 more for both gradients. (Recomputing the logits in the backward, to save memory, takes 2 more.)
"""

from dataclasses import dataclass

import numpy as np

from .base import Cost, Unavailable, Work, blocks, spread_over, uniform


@dataclass(frozen=True)
class CrossEntropy(Work):
    tokens: int
    vocabulary: int

    operator = "cross_entropy"
    outputs = ("loss",)
    variables = ("logits",)

    def arrays(self, random):
        logits = uniform(random, self.tokens, self.vocabulary)
        return {"logits": logits, "labels": random.integers(0, self.vocabulary, self.tokens)}

    def samples(self, name):
        return () if name == "loss" else (spread_over(self.tokens),)

    def golden(self, arrays, outputs, backward):
        logits, labels = arrays["logits"], arrays["labels"]
        loss, _ = losses(lambda rows: logits[rows].astype(np.float64), labels, self.vocabulary)
        rows = self.samples("dlogits")[0]
        return {
            "loss": loss.mean(),
            "dlogits": _dlogits(logits[rows].astype(np.float64), labels[rows], self.tokens),
        }

    def cost(self, item_size, backward):
        return Cost(self.tokens * self.vocabulary * item_size * (3 if backward else 1))

    def memory(self, contender, item_size, backward):
        return 4 * self.tokens * self.vocabulary * 4

    def paddle(self, tensors, contender):
        import paddle
        import paddle.nn.functional as F

        logits, labels = tensors["logits"], tensors["labels"]
        if contender == "composed" or (contender == "fused" and paddle.get_device() == "cpu"):
            raise Unavailable("paddle_fused fuses the linear layer: linear_cross_entropy")
        return lambda: (F.cross_entropy(logits, labels),)

    def torch(self, tensors):
        from torch.nn.functional import cross_entropy

        return lambda t: (cross_entropy(t["logits"], t["labels"]),)


@dataclass(frozen=True)
class LinearCrossEntropy(Work):
    tokens: int
    hidden: int
    vocabulary: int

    operator = "linear_cross_entropy"
    outputs = ("loss",)
    variables = ("hidden", "weight")

    def arrays(self, random):
        scale = np.float32(self.hidden**-0.5)
        return {
            "hidden": uniform(random, self.tokens, self.hidden),
            "weight": uniform(random, self.hidden, self.vocabulary) * scale,
            "labels": random.integers(0, self.vocabulary, self.tokens),
        }

    def samples(self, name):
        if name == "loss":
            return ()
        return (
            (spread_over(self.tokens),) if name == "dhidden" else (slice(None), spread_over(self.vocabulary))
        )

    def golden(self, arrays, outputs, backward):
        hidden, weight, labels = arrays["hidden"], arrays["weight"].astype(np.float64), arrays["labels"]
        loss, largest = losses(lambda rows: hidden[rows].astype(np.float64) @ weight, labels, self.vocabulary)
        if not backward:
            return {"loss": loss.mean()}
        rows, columns = self.samples("dhidden")[0], self.samples("dweight")[1]
        wide = hidden.astype(np.float64)
        drows = _dlogits(wide[rows] @ weight, labels[rows], self.tokens)
        dcolumns = np.exp(wide @ weight[:, columns] - largest[:, None]) - (labels[:, None] == columns)
        return {"loss": loss.mean(), "dhidden": drows @ weight.T, "dweight": wide.T @ dcolumns / self.tokens}

    def memory(self, contender, item_size, backward):
        return 4 * self.tokens * self.vocabulary * 4 + 3 * self.cost(item_size, backward).bytes

    def paddle(self, tensors, contender):
        import paddle
        import paddle.nn.functional as F

        import paddle_fused

        hidden, weight, labels = (tensors[name] for name in ("hidden", "weight", "labels"))
        if contender == "paddle":
            return lambda: (F.cross_entropy(paddle.matmul(hidden, weight), labels),)
        return lambda: (paddle_fused.linear_cross_entropy(hidden, weight, labels),)

    def torch(self, tensors):
        from torch.nn.functional import cross_entropy

        return lambda t: (cross_entropy(t["hidden"] @ t["weight"], t["labels"]),)


@dataclass(frozen=True)
class Linear(Work):
    tokens: int
    inner: int
    outer: int

    operator = "linear"
    variables = ("x", "weight")

    def arrays(self, random):
        return {
            "x": uniform(random, self.tokens, self.inner),
            "weight": uniform(random, self.inner, self.outer) * np.float32(self.inner**-0.5),
            "dout": uniform(random, self.tokens, self.outer),
        }

    def samples(self, name):
        return (slice(None), spread_over(self.outer)) if name == "dweight" else (spread_over(self.tokens),)

    def golden(self, arrays, outputs, backward):
        rows, columns = self.samples("out")[0], self.samples("dweight")[1]
        x, weight, dout = (arrays[name].astype(np.float64) for name in ("x", "weight", "dout"))
        return {"out": x[rows] @ weight, "dx": dout[rows] @ weight.T, "dweight": x.T @ dout[:, columns]}

    def cost(self, item_size, backward):
        sizes = self.tokens * self.inner + self.inner * self.outer + self.tokens * self.outer
        multiplied = 2 * self.tokens * self.inner * self.outer
        return Cost(sizes * item_size * (3 if backward else 1), multiplied * (3 if backward else 1))

    def paddle(self, tensors, contender):
        import paddle

        x, weight = tensors["x"], tensors["weight"]
        if contender == "composed" or (contender == "fused" and paddle.get_device() == "cpu"):
            raise Unavailable("the product is Paddle's own on the CPU place")
        return lambda: (paddle.matmul(x, weight),)

    def torch(self, tensors):
        return lambda t: (t["x"] @ t["weight"],)


def losses(logits_of, labels, vocabulary):
    """(loss, log of the sum of exponentials) of every token; ``logits_of(rows)`` returns float64 rows."""
    loss, sums = np.empty(len(labels)), np.empty(len(labels))
    for rows in blocks(len(labels), vocabulary):
        logits = logits_of(rows)
        largest = logits.max(1, keepdims=True)
        sums[rows] = np.log(np.exp(logits - largest).sum(1)) + largest[:, 0]
        loss[rows] = sums[rows] - logits[np.arange(len(logits)), labels[rows]]
    return loss, sums


def _dlogits(logits, labels, tokens):
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    probabilities[np.arange(len(labels)), labels] -= 1
    return probabilities / tokens
