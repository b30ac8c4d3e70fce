"""Layer inputs of a step without values, enough to find out which backend an operator would use.

For a sharded tensor, the sizes refer to one process's shard. B rows, S tokens per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle

from paddle_fused import masks


@dataclass(frozen=True)
class Batch:
    """The sizes, activation dtype and mask of a batch.

    Attributes:
        mask: None for a causal mask.
        position_ids: int64 [B, S], or None for 0, 1, 2, ... in every row.
        recomputed: whether every decoder layer is recomputed.
        patches: the number of patches of each image; empty if unknown.
    """

    rows: int
    length: int
    dtype: str
    mask: masks.Mask | None = None
    position_ids: object | None = None
    recomputed: bool = False
    patches: tuple[int, ...] = ()

    def empty(self, *shape: int, dtype=None):
        """An uninitialized activation that requires a gradient."""
        tensor = paddle.empty(list(shape), dtype or self.dtype)
        tensor.stop_gradient = False
        return tensor

    def table(self, *shape: int):
        """An uninitialized tensor that requires no gradient, for example a table of cosines."""
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
