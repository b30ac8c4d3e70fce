"""The inputs of the layers in a step, without values: enough to ask which backend an operator would use.

Where processes share a tensor, the sizes are those of one process's part. B rows, S tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle

from paddle_fused import masks


@dataclass(frozen=True)
class Batch:
    """Sizes, the dtype of activations, and the documents of a batch.

    ``mask`` None: causal. ``position_ids``: int64 [B, S], or None: 0, 1, 2, ... in every row. ``recomputed``:
    every decoder layer is.
    """

    rows: int
    length: int
    dtype: str
    mask: masks.Mask | None = None
    position_ids: object | None = None
    recomputed: bool = False

    def empty(self, *shape: int, dtype=None):
        """An uninitialised activation, with a gradient."""
        tensor = paddle.empty(list(shape), dtype or self.dtype)
        tensor.stop_gradient = False
        return tensor

    def table(self, *shape: int):
        """An uninitialised tensor without a gradient, such as a table of cosines."""
        return paddle.empty(list(shape), self.dtype)

    def positions(self):
        """The positions as a tensor [B, S]."""
        if self.position_ids is not None:
            return paddle.to_tensor(self.position_ids, dtype="int64")
        return paddle.arange(self.length, dtype="int64").expand([self.rows, self.length])


def parts(projection) -> int:
    """The number of processes that share the columns of ``projection``, a linear layer or None."""
    weight = None if projection is None else projection.weight
    return weight.shape[1] // weight._local_shape[1] if weight is not None and weight.is_dist() else 1
