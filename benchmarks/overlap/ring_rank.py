"""Ring attention on a rank of worker.py."""

from __future__ import annotations

from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist

from paddle_fused import masks
from paddle_fused.context_parallel import ring

from .cases import RANKS, STEP, Case
from .on_rank import OperatorWithTransfers
from .ring import HEAD_DIM, HEADS, KEY_HEADS, OVERLAPPED
from .transfers import BLOCKS, FORWARD_BLOCKS, SERIAL


class Ring(OperatorWithTransfers):
    """Causal attention on this rank's tokens, forward or as a whole step."""

    def __init__(self, case: Case, group):
        self.case, self.group = case, group
        self.other = dist.new_group(group.ranks)
        for direction in (group, self.other):
            dist.barrier(direction)
        random = np.random.default_rng(group.rank)
        shapes = [(1, case.rows, heads, HEAD_DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)]
        *self.inputs, self.gradient = (
            paddle.to_tensor(random.standard_normal(shape, dtype="float32")).astype(case.dtype)
            for shape in shapes
        )
        for tensor in self.inputs:
            tensor.stop_gradient = case.way != STEP

    def contenders(self) -> list[str]:
        return [SERIAL, OVERLAPPED, BLOCKS, *([FORWARD_BLOCKS] if self.case.way == STEP else [])]

    def _run(self, name: str):
        transfers = {SERIAL: _waited, OVERLAPPED: ring.pass_on, BLOCKS: _kept, FORWARD_BLOCKS: _kept}
        for tensor in self.inputs:
            tensor.clear_gradient(False)
        with mock.patch.object(ring, "pass_on", transfers[name]):
            out = ring.ring_attention(
                *self.inputs, masks.causal(), group=self.group, backward_group=self.other
            )
            if self.case.way == STEP and name != FORWARD_BLOCKS:
                out.backward(self.gradient)
        return out


def _waited(tensors: list, call) -> ring.Pending:
    """The transfer, completed before anything else is computed."""
    return ring.Pending(_PASS_ON(tensors, call).wait(), [], [])


def _kept(tensors: list, call) -> ring.Pending:
    """No transfer: the tensors stay on the rank."""
    return ring.Pending(tensors, [], [])


_PASS_ON = ring.pass_on
assert RANKS == 2, "ring.bound counts the blocks of two ranks"
