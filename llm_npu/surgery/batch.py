"""What the layers get in a step, without its numbers: enough to ask the operators who would run.

Where processes share a tensor, each operator computes on parts: the sizes here are those of one process's.
B rows, S tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle

from paddle_fused import masks


@dataclass(frozen=True)
class Batch:
    """Sizes, the dtype of activations, and what the batch says of documents.

    ``mask`` None: causal. ``position_ids``: int64 [B, S], or None: 0, 1, 2, ... in every row.
    """

    rows: int
    length: int
    dtype: str
    mask: masks.Mask | None = None
    position_ids: object | None = None

    def empty(self, *shape: int, dtype=None):
        """A tensor as an activation is: nothing in it, and with a gradient."""
        tensor = paddle.empty(list(shape), dtype or self.dtype)
        tensor.stop_gradient = False
        return tensor

    def table(self, *shape: int):
        """A tensor without gradient, such as cosines are."""
        return paddle.empty(list(shape), self.dtype)

    def positions(self):
        """The positions as a tensor [B, S]."""
        if self.position_ids is not None:
            return paddle.to_tensor(self.position_ids, dtype="int64")
        return paddle.arange(self.length, dtype="int64").expand([self.rows, self.length])


def parts(projection) -> int:
    """The number of processes that share the columns of a layer, which is None or has a weight."""
    weight = None if projection is None else projection.weight
    return weight.shape[1] // weight._local_shape[1] if weight is not None and weight.is_dist() else 1
