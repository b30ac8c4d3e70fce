"""Expert parallelism on a rank of worker.py."""

from __future__ import annotations

from functools import partial
from unittest import mock

import numpy as np
import paddle

import paddle_fused
from llm_npu.parallel import overlap
from paddle_fused import expert_parallel

from .cases import RANKS, STEP, Case
from .experts import ALONE, CHUNKS, FORWARD_ALONE, OWN, TOP_K, WIDTH
from .on_rank import OperatorWithTransfers
from .transfers import BLOCKS, SERIAL


class Experts(OperatorWithTransfers):
    """An MoE layer with SwiGLU experts, forward or as a whole step."""

    def __init__(self, case: Case, group):
        self.case, self.group, self.planner = case, group, overlap.Planner()
        random = np.random.default_rng(group.rank)

        def tensor(*shape, scale=1.0):
            values = random.standard_normal(shape, dtype="float32") * scale
            return paddle.to_tensor(values).astype(case.dtype)

        experts, rows = OWN * RANKS, case.rows * TOP_K
        self.tokens, self.gradient = tensor(case.rows, WIDTH), tensor(case.rows, WIDTH)
        self.gate_up = [tensor(WIDTH, 2 * WIDTH, scale=WIDTH**-0.5) for _ in range(OWN)]
        self.down = [tensor(WIDTH, WIDTH, scale=WIDTH**-0.5) for _ in range(OWN)]
        self.inputs = [self.tokens, *self.gate_up, *self.down]
        for x in self.inputs:
            x.stop_gradient = case.way != STEP
        self.probs = paddle.full([case.rows, TOP_K], 1 / TOP_K)
        self.indices = paddle.to_tensor((np.arange(rows) % experts).reshape([-1, TOP_K]))
        # As many rows as experts get.
        self.sizes = [rows // OWN] * OWN
        self.sorted_rows, self.sorted_gradient = tensor(rows, WIDTH), tensor(rows, WIDTH)
        self.sorted_rows.stop_gradient = case.way != STEP

    def contenders(self) -> list[str]:
        alone = [ALONE, FORWARD_ALONE] if self.case.way == STEP else [ALONE]
        return [SERIAL, *CHUNKS, BLOCKS, *alone]

    def plan(self) -> overlap.OverlapPlan:
        with paddle.no_grad():
            self._moe_layer(partial(self.planner.chunks_of_experts, self.group))
        return self.planner.plans[0]

    def _run(self, name: str):
        for x in (*self.inputs, self.sorted_rows):
            x.clear_gradient(False)
        exchange = _kept if name == BLOCKS else expert_parallel.start_exchange
        with mock.patch.object(expert_parallel, "start_exchange", exchange):
            if name in (ALONE, FORWARD_ALONE):
                out, gradient = self._experts(self.sorted_rows, self.sizes, slice(None)), self.sorted_gradient
            else:
                out, gradient = self._moe_layer(CHUNKS.get(name, 1)), self.gradient
            if self.case.way == STEP and name != FORWARD_ALONE:
                out.backward(gradient)
        return out

    def _moe_layer(self, chunks):
        options = {"num_experts": OWN * RANKS, "group": self.group, "chunks": chunks}
        return expert_parallel.expert_parallel(
            self.tokens, self.probs, self.indices, self._experts, **options
        )

    def _experts(self, rows, sizes: list[int], own: slice):
        inner = paddle_fused.swiglu(paddle_fused.grouped_matmul(rows, self.gate_up[own], sizes, 1))
        return paddle_fused.grouped_matmul(inner, self.down[own], sizes, 1)


def _kept(parts: list, shapes: list, group) -> expert_parallel.PendingExchange:
    """No transfer: the rank computes the rows that it would send, which are as many as it would receive."""
    return expert_parallel.PendingExchange(list(parts), [], [])
