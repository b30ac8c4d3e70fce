"""Patches for defects of layers."""

from __future__ import annotations

import functools

from paddle_fused import paddle_release


def apply() -> None:
    """Apply those that the installed version needs; a second call changes nothing."""
    if paddle_release.before(3, 1):
        fix_sequence_parallel_split_axis()


@functools.cache
def fix_sequence_parallel_split_axis() -> None:
    """Paddle 3.0: weights of sequence parallel layers do not record their split dimension.

    Those of tensor parallel layers do, in ``split_axis``, and checkpoints without a mesh need it
    ("'EagerParamBase' object has no attribute 'split_axis'").
    """
    from paddle.distributed.fleet.utils import sequence_parallel_utils as layers

    for kind, weight_axis in (
        (layers.ColumnSequenceParallelLinear, 1),
        (layers.RowSequenceParallelLinear, 0),
    ):
        kind.__init__ = _says_its_split(kind.__init__, weight_axis)


def _says_its_split(build, weight_axis: int):
    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.weight.is_distributed:
            self.weight.split_axis = weight_axis
        if self.bias is not None and self.bias.is_distributed:
            self.bias.split_axis = 0

    return __init__
