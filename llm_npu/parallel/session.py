"""Training steps of a model on a mesh, in dygraph or as the static program of ``dist.to_static``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import paddle.distributed as dist

from llm_npu.core.errors import UserError
from llm_npu.parallel import gradients, mesh, stages
from llm_npu.parallel.apply import parallelize, parallelize_stages
from llm_npu.parallel.communication import Collective
from llm_npu.parallel.gradients import GradientSums
from llm_npu.parallel.loss import CausalLoss
from llm_npu.parallel.plan import llama, placements
from llm_npu.parallel.program import Program
from llm_npu.parallel.settings import Settings

STAGES = {1: dist.ShardingStage1, 2: dist.ShardingStage2, 3: dist.ShardingStage3}


class Session:
    """Shards ``model`` and trains it.

        session = Session(model, settings, lambda parameters: AdamW(1e-3, parameters=parameters))
        loss = session.step(input_ids, labels)

    Every process must create the same ``model`` (PaddleNLP's LlamaForCausalLM, fused or not). It is sharded,
    and each process keeps the layers of its stage.
    """

    def __init__(self, model, settings: Settings, optimizer: Callable[[list], paddle.optimizer.Optimizer]):
        degrees = settings.degrees
        self.settings = settings
        self.model = model
        self._meshes = mesh.make(degrees)
        self.mesh = self._meshes[degrees.stage]
        self.plan = llama(settings.sequence_parallel)
        if degrees.pp > 1 and settings.to_static:
            stages.check(model.config, degrees.pp)
            parallelize_stages(model, self._meshes, self.plan)  # split when the program is built
        else:
            if degrees.pp > 1:
                stages.cut(model, degrees.stage, degrees.pp)
            parallelize(model, self.mesh, self.plan)
        self.causal = CausalLoss(model)
        if settings.recompute:
            _recompute(model)
        self.optimizer = _sharded(optimizer(model.parameters()), settings.sharding, self.mesh)
        self._sums = GradientSums(model)
        self._low_precision = any(item.dtype != paddle.float32 for item in model.parameters())
        self._pipeline = None
        if degrees.pp > 1:
            from llm_npu.parallel.pipeline import Pipeline  # needs features of Paddle 3.1 and later

            between = placements(0, self.plan.between)
            self._pipeline = Pipeline(self.causal, settings, self.mesh, between, self._sums)
        self.sent_to_stages: list[Collective] = []  # set by the last step of a pipeline in dygraph
        self._program: Program | None = None

    def batch(self, input_ids: np.ndarray, labels: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        """This process's rows [rows, S] as its shard of a batch."""
        return self._placed(input_ids, self.mesh), self._placed(labels, self.mesh)

    def step(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """One optimizer step on this process's rows; returns the loss of all processes' rows.

        Args:
            input_ids, labels: int64 [rows, S], ``accumulation`` concatenated micro batches; equal on
                processes that differ only in tp or pp.

        Returns:
            The loss in nats per label.
        """
        if self.settings.to_static:
            loss = self.program(input_ids, labels).step(*self._fed(input_ids, labels))
            return loss if self._pipeline is None else self._pipeline.broadcast(loss)
        loss = self.backward(input_ids, labels)
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss

    def backward(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """`step` without the optimizer, in dygraph; leaves the gradients in the parameters."""
        parts = self.settings.accumulation
        self._check_rows(input_ids)
        if self._pipeline is not None:
            batch = self.batch(input_ids, labels)
            loss, self.sent_to_stages = self._pipeline.backward(*batch), self._pipeline.sends(batch[0])
        else:
            pairs = zip(np.split(input_ids, parts), np.split(labels, parts), strict=True)
            loss = sum(self._backward(*pair) for pair in pairs)
        self._sums.restore()
        gradients.reduce(self.model)
        return loss

    @paddle.no_grad()
    def evaluate(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """The loss of a batch, in dygraph. A static pipeline's program must have been built."""
        if self._pipeline is not None and self.settings.to_static and self._program is None:
            raise UserError(
                "evaluation needs the pipeline's program, which is not built yet; build it, or run a step, "
                "first"
            )
        batch = self.batch(input_ids, labels)
        if self._pipeline is not None:
            return self._pipeline.evaluate(*batch)
        return float(self.causal(*batch))

    def program(self, input_ids: np.ndarray, labels: np.ndarray) -> Program:
        """The step program for these input shapes, built in the first call."""
        self._check_rows(input_ids)
        if self._program is None:
            rows = len(input_ids) // self.settings.accumulation  # the executor splits its feed
            batch = self._fed(input_ids[:rows], labels[:rows])
            self._program = Program(self.causal, self.settings, self.optimizer, *batch)
            if self._pipeline is not None:
                stages.cut(self.model, self.settings.degrees.stage, self.settings.degrees.pp)
        return self._program

    def _fed(self, input_ids: np.ndarray, labels: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        """`batch` for a program, with the token ids on the first stage and the labels on the last."""
        return self._placed(input_ids, self._meshes[0]), self._placed(labels, self._meshes[-1])

    def _backward(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """The loss of a micro batch, divided by the number of micro batches."""
        # Multiply, because the plugin has no kernel for division by a scalar.
        loss = self.causal(*self.batch(input_ids, labels)) * (1 / self.settings.accumulation)
        loss.backward()
        if self.settings.accumulation > 1 or self._low_precision:
            self._sums.add()
        return float(loss)

    def _check_rows(self, rows: np.ndarray) -> None:
        if len(rows) % self.settings.accumulation:
            raise UserError(
                f"{len(rows)} rows cannot be divided into {self.settings.accumulation} micro batches"
            )

    def _placed(self, rows: np.ndarray, where: dist.ProcessMesh) -> paddle.Tensor:
        local = paddle.to_tensor(np.ascontiguousarray(rows, dtype=np.int64))
        return dist.auto_parallel.api.dtensor_from_local(local, where, placements(0, None))


def _sharded(optimizer: paddle.optimizer.Optimizer, stage: int, mesh: dist.ProcessMesh):
    return dist.shard_optimizer(optimizer, STAGES[stage]("dp", mesh) if stage else None)


def _recompute(model) -> None:
    """Set PaddleNLP's recompute switches, as its Trainer does."""
    for layer in (model.llama, *model.llama.layers):
        layer.enable_recompute = True
    model.llama.recompute_granularity = "full"
