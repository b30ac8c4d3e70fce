"""Training steps of a model on a mesh: in dygraph, or as the static program of ``dist.to_static``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.parallel import mesh
from llm_npu.parallel.apply import parallelize
from llm_npu.parallel.loss import CausalLoss
from llm_npu.parallel.mesh import Degrees
from llm_npu.parallel.plan import llama, placements

STAGES = {1: dist.ShardingStage1, 2: dist.ShardingStage2, 3: dist.ShardingStage3}


@dataclass(frozen=True)
class Settings:
    """``sharding``: the stage (1: optimizer states, 2: and gradients, 3: and parameters over dp) or 0.

    ``accumulation``: micro batches of an optimizer step. ``recompute``: the decoder layers' activations are
    computed again in the backward pass. ``to_static``: the step is one program.
    """

    degrees: Degrees
    sequence_parallel: bool = False
    sharding: int = 0
    recompute: bool = False
    accumulation: int = 1
    to_static: bool = False

    def __post_init__(self):
        if self.sharding not in (0, *STAGES):
            raise ValueError(f"sharding is {self.sharding!r}; accepted: the stage 1, 2 or 3, or 0 for none.")
        if self.accumulation < 1:
            raise ValueError(f"accumulation is {self.accumulation}; accepted: 1 or more micro batches.")

    def __str__(self) -> str:
        parts = [str(self.degrees)]
        parts += ["sequence parallel"] * self.sequence_parallel
        parts += [f"sharding stage {self.sharding}"] * (self.sharding > 0)
        parts += ["recompute"] * self.recompute
        parts += [f"accumulation {self.accumulation}"] * (self.accumulation > 1)
        return ", ".join(parts)


class Session:
    """Splits ``model`` and trains it.

        session = Session(model, settings, lambda parameters: AdamW(1e-3, parameters=parameters))
        loss = session.step(input_ids, labels)

    Every process has made the same ``model`` (PaddleNLP's LlamaForCausalLM, fused or not); it is split.
    """

    def __init__(self, model, settings: Settings, optimizer: Callable[[list], paddle.optimizer.Optimizer]):
        self.settings = settings
        self.model = model
        self.mesh = mesh.make(settings.degrees)
        self.plan = llama(settings.sequence_parallel)
        parallelize(model, self.mesh, self.plan)
        self.causal = CausalLoss(model)
        if settings.recompute:
            _recompute(model)
        self.optimizer = _sharded(optimizer(model.parameters()), settings.sharding, self.mesh)
        self._sums = Sums(model)
        self._program: dist.DistModel | None = None

    def batch(self, input_ids: np.ndarray, labels: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        """This process's rows [rows, S] as its part of a batch."""
        return self._placed(input_ids), self._placed(labels)

    def step(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """One optimizer step on this process's rows; the loss in nats per label, over the rows of all.

        ``input_ids``, ``labels``: int64 [rows, S], the same on processes that differ in mp only. The
        rows are ``accumulation`` micro batches, one after the other.
        """
        if len(input_ids) % self.settings.accumulation:
            raise ValueError(
                f"{len(input_ids)} rows cannot be divided into {self.settings.accumulation} micro batches."
            )
        if not self.settings.to_static:
            return self._dygraph_step(input_ids, labels)
        return self._static_step(input_ids, labels)

    def program(self, input_ids: np.ndarray, labels: np.ndarray) -> dist.DistModel:
        """The program of a step on rows of these shapes, made once."""
        if self._program is None:
            rows = len(input_ids) // self.settings.accumulation  # the executor cuts what it is fed
            ids, wanted = self.batch(input_ids[:rows], labels[:rows])
            specs = [
                [DistributedInputSpec.from_dtensor(ids, "input_ids"), _spec(wanted, "labels")],
                [_spec(wanted, "loss_labels")],
            ]
            self._program = dist.to_static(
                self.causal,
                None,
                lambda loss, _labels: loss,
                self.optimizer,
                self._strategy(),
                input_spec=specs,
            )
            self._program.train()
        return self._program

    def _placed(self, rows: np.ndarray) -> paddle.Tensor:
        local = paddle.to_tensor(np.ascontiguousarray(rows, dtype=np.int64))
        return dist.auto_parallel.api.dtensor_from_local(local, self.mesh, placements(0, None))

    def backward(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """The loss of one micro batch [rows, S], as its share of a step's; keeps its gradients."""
        loss = self.causal(*self.batch(input_ids, labels)) / self.settings.accumulation
        loss.backward()
        if self.settings.accumulation > 1:
            self._sums.add()
        return float(loss)

    def finish_gradients(self) -> None:
        """Behind the last micro batch of a step: the parameters' gradients are those of the step."""
        self._sums.give_back()
        self._reduce_gradients()

    @paddle.no_grad()
    def evaluate(self, input_ids: np.ndarray, labels: np.ndarray) -> float:
        """The loss of a batch, in dygraph."""
        loss = self.causal(*self.batch(input_ids, labels))
        return float(loss)

    def _dygraph_step(self, input_ids, labels) -> float:
        parts = self.settings.accumulation
        pairs = zip(np.split(input_ids, parts), np.split(labels, parts), strict=True)
        loss = sum(self.backward(*pair) for pair in pairs)
        self.finish_gradients()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss

    def _reduce_gradients(self) -> None:
        """Sums each gradient over the processes, once: clipping and the optimizer would each do so again.

        Sharding takes each process's part of the sum. A program does this by itself.
        """
        for parameter in self.model.parameters():
            gradient = parameter.grad
            if gradient is None or not any(placement.is_partial() for placement in gradient.placements):
                continue
            total = dist.reshard(gradient, parameter.process_mesh, parameter.placements)
            gradient.get_tensor()._share_data_with(total.get_tensor())

    def _static_step(self, input_ids, labels) -> float:
        ids, wanted = self.batch(input_ids, labels)
        loss = self.program(input_ids, labels)(ids, wanted, wanted)
        return float(np.mean(np.asarray(loss)))

    def _strategy(self) -> dist.Strategy:
        parts = self.settings.accumulation
        return dist.Strategy(
            {
                "recompute": {"enable": self.settings.recompute, "refined_ops_patterns": []},
                "gradient_merge": {"enable": parts > 1, "k_steps": parts, "avg": True},
            }
        )


class Sums:
    """Adds up the gradients of several backward passes.

    Paddle 3.3 does so itself, but not for DistTensors on a custom device ("DistTensor doesn't support custom
    device"). Here every process adds its parts.
    """

    def __init__(self, model):
        self._parameters = model.parameters()
        self._sums: dict[int, tuple[paddle.Tensor, list]] = {}

    @paddle.no_grad()
    def add(self) -> None:
        """Takes the parameters' gradients."""
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None or not gradient._is_initialized():
                continue
            part = gradient._local_value()
            if number in self._sums:
                self._sums[number][0].add_(part)
            else:  # a copy: clearing a gradient frees its memory
                self._sums[number] = part.clone(), _copied(gradient.placements)
            parameter.grad = None

    def give_back(self) -> None:
        """Makes the sums the parameters' gradients."""
        for number, (part, placed) in self._sums.items():
            mesh = self._parameters[number].process_mesh
            self._parameters[number].grad = dist.auto_parallel.api.dtensor_from_local(part, mesh, placed)
        self._sums.clear()


def _copied(placements: list) -> list:
    """Those of a tensor live no longer than it does."""

    def copied(one):
        if one.is_partial():
            return dist.Partial()
        return dist.Shard(one.get_dim()) if one.is_shard() else dist.Replicate()

    return [copied(one) for one in placements]


def _spec(tensor: paddle.Tensor, name: str) -> DistributedInputSpec:
    return DistributedInputSpec.from_dtensor(tensor, name)


def _sharded(optimizer: paddle.optimizer.Optimizer, stage: int, mesh: dist.ProcessMesh):
    return dist.shard_optimizer(optimizer, STAGES[stage]("dp", mesh) if stage else None)


def _recompute(model) -> None:
    """PaddleNLP's own switches, which its Trainer sets as well."""
    for layer in (model.llama, *model.llama.layers):
        layer.enable_recompute = True
    model.llama.recompute_granularity = "full"
