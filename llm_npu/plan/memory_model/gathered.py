"""Sharding stage 3: each card has a shard of every large weight, gathered while a layer uses it.

As in Paddle's GroupShardedStage3:

- The next weight is gathered while the current one is in use.
- The output of a layer with weights is copied.
- Before a layer's backward pass, the gradient of its whole weight is allocated as float32 zeros, and the
  previous weight is gathered. The card keeps its shard of the gradient until the optimizer step.

Small weights stay whole and share one buffer for their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..layout import Layout
from ..shape import ModelShape
from .ledger import CHUNK, Ledger

HALF, SINGLE = 2, 4  # bytes of bfloat16 and of float32
SEGMENT = 1 << 20  # largest unsharded weight in elements: default of Paddle's group_sharded_parallel
# The gathered weights and the gradient buffer are padded to a multiple of this many elements.
ALIGNED = CHUNK // HALF


class Gathered:
    """The sharded weights of a layer.

    Attributes:
        products: the elements of each weight by matmul, in order of use.
        degree: the number of shards; 1 without stage 3, when nothing is gathered.
        experts: the number of experts of the feed-forward matmuls.
        keeps: whether gradient shards stay allocated because several micro batches accumulate into them.
    """

    def __init__(self, shape: ModelShape, layout: Layout):
        hidden, width = shape.hidden_size, shape.intermediate_size
        query, key, up, table = (
            hidden * size for size in (shape.query_size, shape.key_value_size, width, shape.vocab_size)
        )
        products = {"embedding": (table,), "out": (query,), "down": (up,), "head": (table,)}
        if shape.fuses_projections:
            products |= {"columns": (query + 2 * key,), "up": (2 * up,)}
        else:
            products |= {"columns": (query, key, key), "up": (up, up)}
        self.products, self.experts = products, max(shape.num_experts, 1)
        self.degree = layout.sharding_degree if layout.sharding == "stage3" else 1
        self.keeps = layout.micro_batches > 1

    def is_cut(self, size: int) -> bool:
        """Whether a weight of ``size`` elements is sharded."""
        return self.degree > 1 and size > SEGMENT

    def part(self, size: int) -> int:
        """Elements of a card's shard of a weight of ``size``; ``size`` if the weight is not sharded."""
        return self.padded(size) // self.degree if self.is_cut(size) else size

    def padded(self, size: int) -> int:
        """Elements of a gathered weight of ``size``."""
        return _up(_up(size, ALIGNED), self.degree)

    def expect(self, ledger: Ledger, product: str, index: int = 0) -> None:
        """Gathers a weight of ``product`` before it is used."""
        if self.degree == 1:
            return
        size = HALF * self._whole(product)[index]
        if ledger.holds(f"whole {product}"):  # replaces the weight gathered for a backward pass
            ledger.take("gathered again", size, "weights")
            ledger.give("gathered again")
        else:
            ledger.take(f"whole {product}", size, "weights")

    def forward(self, ledger: Ledger, product: str, outputs: Sequence[int], then: str = "") -> None:
        """Run ``product``, one weight after the other, with outputs of the given bytes.

        Afterwards, gather the first weight of the matmul ``then``.
        """
        if self.degree == 1:
            return
        total = 0
        for index, output in enumerate(outputs):
            ledger.give(f"whole {product}")
            ledger.take("weight in use", HALF * self._others(self._whole(product)[index]), "weights")
            if index + 1 < len(outputs):
                self.expect(ledger, product, index + 1)
            elif then:
                self.expect(ledger, then)
            total += output
            ledger.take("put out", total + output, "temporary")
            ledger.give("put out", "weight in use")

    def backward(self, ledger: Ledger, product: str, before: str = "") -> None:
        """Begin the backward pass of ``product``: allocate its weight and gradient, gather ``before``.

        With several weights, this records the peak.
        """
        if self.degree == 1:
            return
        sizes = self._whole(product)
        others = [self._whole(before)[-1] if before else 0, *sizes[:-1]]
        size, other = max(
            zip(sizes, others, strict=True), key=lambda pair: (HALF + SINGLE) * pair[0] + HALF * pair[1]
        )
        ledger.give(f"whole {product}")
        ledger.take(f"whole {product}", HALF * self._others(size), "weights")
        ledger.take("whole gradient", SINGLE * size, "gradients")
        ledger.take(f"whole {before or 'of none'}", HALF * other, "weights")

    def end(self, ledger: Ledger, product: str) -> None:
        """End the backward pass of ``product``; the card keeps its gradient shards."""
        if self.degree == 1:
            return
        ledger.give(f"whole {product}", "whole gradient", "whole of none")
        if not self.keeps:
            ledger.take(f"gradients of {product}", self.gradients(product), "gradients")

    def gradients(self, *products: str) -> int:
        """Bytes of the gradient shards of ``products``."""
        times = {"up": self.experts, "down": self.experts}
        return sum(
            SINGLE * self.part(size) * times.get(product, 1)
            for product in products
            for size in self.products[product]
            if self.is_cut(size)
        )

    def _whole(self, product: str) -> list[int]:
        """Elements of the gathered weights of ``product``; 0 for unsharded ones."""
        return [self.padded(size) if self.is_cut(size) else 0 for size in self.products[product]]

    def _others(self, size: int) -> int:
        """Elements of a gathered weight outside the card's own shard; they are released after use."""
        return size - size // self.degree


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
