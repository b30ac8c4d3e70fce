"""What the layers get in a step, without its numbers: enough to ask the operators who would run.

B rows, S tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle
import paddle.distributed as dist

from paddle_fused import masks


@dataclass(frozen=True)
class Batch:
    """Sizes, the dtype of activations, and what the batch says of documents.

    ``mask`` None: causal. ``position_ids``: int64 [B, S], or None: 0, 1, 2, ... in every row. ``mesh``: of
    the model's parameters, if they are distributed tensors.
    """

    rows: int
    length: int
    dtype: str
    mask: masks.Mask | None = None
    position_ids: object | None = None
    mesh: dist.ProcessMesh | None = None

    def empty(self, *shape: int, dtype=None):
        """A tensor as an activation is: nothing in it, and with a gradient."""
        tensor = self.placed(paddle.empty(list(shape), dtype or self.dtype))
        tensor.stop_gradient = False
        return tensor

    def table(self, *shape: int):
        """A tensor without gradient, such as cosines are."""
        return self.placed(paddle.empty(list(shape), self.dtype))

    def positions(self):
        """The positions as a tensor [B, S]."""
        if self.position_ids is not None:
            return self.placed(paddle.to_tensor(self.position_ids, dtype="int64"))
        return self.placed(paddle.arange(self.length, dtype="int64").expand([self.rows, self.length]))

    def placed(self, tensor):
        """The tensor on every process of the mesh, as far as there is one."""
        if self.mesh is None:
            return tensor
        return dist.shard_tensor(tensor, self.mesh, [dist.Replicate()] * len(self.mesh.shape))
