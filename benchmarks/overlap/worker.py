"""One rank: ``worker.py job.json answer.json``. Verifies every setting, then times all settings alternately.

A job has ``cases`` and ``rounds``. With ``only``, a list of contenders, nothing else is timed. An answer has
the seconds of every contender and the plan for each case. Contenders are the settings, ``planned``, and
separately ``collective``, ``product`` (also in chunks) and ``gradient`` (the matmul of a weight gradient).
With ``only`` there is also ``concurrent``: the matmul and the collective at the same time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import ColumnParallelLinear, RowParallelLinear
from paddle.distributed.fleet.utils import sequence_parallel_utils

from benchmarks import timing
from benchmarks.graph_end import graph_end
from benchmarks.overlap.cases import BACKWARD, BLOCKS, EXPERTS, FORWARD, FROZEN, RANKS, RING, Case
from benchmarks.overlap.experts import ALONE
from benchmarks.overlap.experts_rank import Experts
from benchmarks.overlap.on_rank import OnRank
from benchmarks.overlap.ring_rank import Ring
from benchmarks.overlap.transfers import BLOCKS as NO_TRANSFERS
from llm_npu.parallel import overlap
from llm_npu.parallel.overlap.product import in_pieces, spans

CHUNKS = (2, 4, 8, 16)
SETTINGS = ("serial", *(f"pipelined:{count}" for count in CHUNKS))
WHOLE, MC2, PLANNED, UPSTREAM = "pipelined:1", "mc2", "planned", "upstream"
PRODUCT, GRADIENT, COLLECTIVE, CONCURRENT = "product", "gradient", "collective", "concurrent"
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}  # relative to the largest value, compared with serial


def settings(case: Case) -> list[str]:
    names = list(SETTINGS)
    if case.way == BACKWARD and case.kind != "all_gather":
        names.insert(1, WHOLE)  # as mc2 does there
    elif case.dtype == "bfloat16":
        names.insert(1, MC2)
    return names


class Operator(OnRank):
    """An operator in one direction, on this rank's tensors."""

    def __init__(self, case: Case, group):
        self.case, self.group = case, group
        self.planner = overlap.Planner()
        self.call = getattr(overlap, case.operator)
        random = np.random.default_rng(group.rank)
        rows = case.rows // RANKS if case.operator == "all_gather_matmul" else case.rows
        self.x = self._tensor(random, rows, case.depth)
        self.weight = self._tensor(random, case.depth, case.columns)
        self.x.stop_gradient = case.way == FORWARD
        self.weight.stop_gradient = case.way in (FORWARD, FROZEN)
        rows = case.rows // RANKS if case.operator == "matmul_reduce_scatter" else case.rows
        self.gradient = self._tensor(random, rows, case.columns)
        # The matmul and the collective separately.
        self.left = self._tensor(random, case.rows, case.depth if case.way == FORWARD else case.columns)
        self.factor = self._tensor(random, case.rows, case.depth) if case.way == BACKWARD else None
        width = case.width_sent
        self.whole = self._tensor(random, case.rows, width)
        self.part = self._tensor(random, case.rows // RANKS, width)

    def contenders(self) -> list[str]:
        chunks = [f"{PRODUCT}:{count}" for count in CHUNKS]
        of_weight = [GRADIENT] if self.case.way == BACKWARD else []
        return [*settings(self.case), PLANNED, PRODUCT, *chunks, *of_weight, COLLECTIVE]

    def results(self, name: str) -> list[np.ndarray]:
        """Results of a run with a setting: the product, or the gradients."""
        if self.case.way == FORWARD:
            return [self._prepared(name)().astype("float32").numpy()]
        self._prepared(name)()
        gradients = [tensor.grad for tensor in (self.x, self.weight) if tensor.grad is not None]
        return [gradient.astype("float32").numpy() for gradient in gradients]

    def plan(self) -> overlap.OverlapPlan:
        """The plan for the product that communicates in this direction."""
        return next(plan for plan in reversed(self.planner.plans) if plan.product.kind == self.case.kind)

    def _prepared(self, name: str) -> Callable:
        if name.startswith(PRODUCT):
            return lambda: self._multiply(int(name.partition(":")[2] or 1))
        if name == GRADIENT:
            return lambda: paddle.matmul(self.factor, self.left, transpose_x=True)
        if name in (COLLECTIVE, CONCURRENT):
            self.whole.zero_()  # repeated sums would overflow
            return self._collective if name == COLLECTIVE else self._concurrent
        setting = self.planner if name == PLANNED else name
        if self.case.way == FORWARD:
            return lambda: self.call(self.x, self.weight, self.group, setting)
        self.x.clear_gradient(False)
        self.weight.clear_gradient(False)
        result = self.call(self.x, self.weight, self.group, setting)
        end = graph_end([result], [self.gradient])
        return end.backward

    def _multiply(self, chunks: int):
        weight = self.weight.detach()
        for first, last in self._cut(chunks):
            paddle.matmul(self.left[first:last], weight, transpose_y=self.case.way != FORWARD)

    def _cut(self, chunks: int) -> list[tuple[int, int]]:
        """Row counts of the chunks of ``pipelined``."""
        rows = self.case.rows
        if self.case.kind != "reduce_scatter" or not in_pieces(rows // RANKS // chunks, rows // RANKS):
            return spans(rows, chunks)
        starts = [rank * rows // RANKS for rank in range(RANKS)]
        cut = spans(rows // RANKS, chunks)
        return [(start + first, start + last) for first, last in cut for start in starts]

    def _collective(self):
        self._started().wait()

    def _concurrent(self):
        flight = self._started()
        self._multiply(1)
        flight.wait()

    def _started(self):
        if self.case.kind == "all_reduce":
            return dist.all_reduce(self.whole, group=self.group, sync_op=False)
        if self.case.kind == "all_gather":
            return dist.stream.all_gather(self.whole, self.part, group=self.group, sync_op=False)
        return dist.stream.reduce_scatter(self.part, self.whole, group=self.group, sync_op=False)

    def _tensor(self, random, *shape):
        values = random.standard_normal(shape, dtype="float32") * 0.1
        return paddle.to_tensor(values).astype(self.case.dtype)


class Block(OnRank):
    """A column- and a row-parallel layer, forward and backward: the communication of an MLP in a step."""

    def __init__(self, case: Case, group):
        self.case, self.group = case, group
        in_parts = case.operator == BLOCKS[1]
        kinds = (ColumnParallelLinear, RowParallelLinear)
        if in_parts:
            kinds = (
                sequence_parallel_utils.ColumnSequenceParallelLinear,
                sequence_parallel_utils.RowSequenceParallelLinear,
            )
        paddle.set_default_dtype(case.dtype)
        wide = case.columns * RANKS
        self.layers = paddle.nn.Sequential(
            kinds[0](case.depth, wide, has_bias=False, gather_output=False),
            kinds[1](wide, case.depth, has_bias=False, input_is_parallel=True),
        )
        paddle.set_default_dtype("float32")
        random = np.random.default_rng(0)
        values = random.standard_normal(
            [case.rows // RANKS if in_parts else case.rows, case.depth], dtype="float32"
        )
        self.x = paddle.to_tensor(values).astype(case.dtype)
        self.x.stop_gradient = False
        self.planner = overlap.Planner()

    def contenders(self) -> list[str]:
        mc2 = [MC2] if self.case.dtype == "bfloat16" else []
        return [UPSTREAM, *SETTINGS, *mc2, PLANNED]

    def results(self, name: str) -> list[np.ndarray]:
        result = self._prepared(name)()
        gradients = [self.x.grad, *(parameter.grad for parameter in self.layers.parameters())]
        return [tensor.astype("float32").numpy() for tensor in (result, *gradients)]

    def _prepared(self, name: str) -> Callable:
        overlap.remove_overlap(self.layers)
        if name != UPSTREAM:
            overlap.apply_overlap(self.layers, self.planner if name == PLANNED else name, strict=True)
        self.x.clear_gradient(False)
        self.layers.clear_gradients()
        return self._step

    def _step(self):
        result = self.layers(self.x)
        result.backward(paddle.ones_like(result))
        return result


def examine(case: Case, group, rounds: int, only: list[str] | None) -> dict:
    kinds = {RING: Ring, EXPERTS: Experts, **dict.fromkeys(BLOCKS, Block)}
    work = kinds.get(case.operator, Operator)(case, group)
    if only:
        return {"seconds": timing.interleaved(work.seconds, only, rounds)}
    names = work.contenders()
    wanted = work.results(names[0])
    for name in names[1:]:
        if not name.startswith((PRODUCT, GRADIENT, COLLECTIVE, NO_TRANSFERS, ALONE)):
            verify(case, name, work.results(name), wanted)
    seconds = timing.interleaved(work.seconds, names, rounds)
    plan = work.plan()
    planned = {} if plan is None else {"choice": str(plan.setting)}
    return {"seconds": seconds, **planned}


def verify(case: Case, name: str, actual: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for array, other in zip(actual, wanted, strict=True):
        allowed = TOLERANCE[case.dtype] * float(np.abs(other).max())
        error = float(np.abs(array - other).max())
        if not error <= allowed:  # also true for NaN
            raise SystemExit(f"{case}: {name} is off by {error:.3g}; allowed: {allowed:.3g}.")


def main(question: str, answer: str) -> None:
    job = json.loads(Path(question).read_text())
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": RANKS, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    examined = []
    for request in job["cases"]:
        case = Case(**request)
        examined.append(examine(case, group, job["rounds"], job.get("only")))
    if group.rank == 0:
        Path(answer).write_text(json.dumps(examined))


if __name__ == "__main__":
    main(*sys.argv[1:])
