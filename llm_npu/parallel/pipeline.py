"""Pipeline parallelism in dygraph: micro batches pass through stages on separate processes.

Paddle's auto-parallel has two implementations. In the first, every process runs the whole model and skips
operators whose tensors it does not hold. Custom operators, including the fused operators, are not skipped and
read missing tensors. This module uses the second, ``paddle.distributed.auto_parallel.pipelining``: a
process has one stage (``llm_npu.parallel.stages``) and sends to the next. The schedule is 1F1B: once a stage
has received enough micro batches to keep later stages busy, it alternates forward and backward passes.

B rows of a micro batch on this process, S sequence, H hidden.
"""

from __future__ import annotations

import logging

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import dtensor_from_local
from paddle.distributed.auto_parallel.pipelining.schedules import Schedule1F1B
from paddle.distributed.auto_parallel.pipelining.stage import PipelineStage
from paddle.distributed.auto_parallel.pipelining.utils import TensorMeta

from llm_npu.core.errors import UserError
from llm_npu.parallel import mesh as meshes
from llm_npu.parallel.communication import Collective
from llm_npu.parallel.gradients import GradientSums
from llm_npu.parallel.loss import CausalLoss
from llm_npu.parallel.plan import placements
from llm_npu.parallel.settings import Settings

# At its default level it logs every send.
logging.getLogger("paddle.distributed.auto_parallel.pipelining").setLevel(logging.WARNING)


class Pipeline:
    """Runs the stage of this process on ``mesh``. All processes must make the same calls.

    Args:
        causal: the model with the layers of this stage.
        between: the placements of hidden states [B, S, H] between stages.
        sums: accumulates the gradients of each micro batch.
    """

    def __init__(
        self,
        causal: CausalLoss,
        settings: Settings,
        mesh: dist.ProcessMesh,
        between: list,
        sums: GradientSums,
    ):
        self._causal, self._parts, self._mesh, self._between = causal, settings.accumulation, mesh, between
        self._sums = sums
        self._number, self._stages = settings.degrees.stage, settings.degrees.pp
        self._first, self._last = self._number == 0, self._number == self._stages - 1
        self._layer = _StageLayer(causal.model, mesh, between, self._first)
        self._group = meshes.column(settings.degrees)
        self._schedules: dict[tuple[int, ...], _Schedule] = {}

    def backward(self, input_ids: paddle.Tensor, labels: paddle.Tensor) -> float:
        """The loss of the micro batches concatenated in [rows, S]; adds their gradients to ``sums``."""
        schedule = self._schedule(input_ids)
        losses: list[paddle.Tensor] = []
        inputs = (input_ids,) if self._first else ()
        schedule.step(*inputs, target=labels if self._last else None, losses=losses)
        return self.broadcast(sum(map(float, losses)))

    def sends(self, input_ids: paddle.Tensor) -> list[Collective]:
        """The tensors that ``backward`` sends to other stages: hidden states and their gradients."""
        rows, length = input_ids._local_shape
        shape = tuple(self._hidden_shape(rows // self._parts, length))
        dtype = str(self._dtype).rpartition(".")[2]
        forward, backward = (Collective("send", 2, dtype, shape, role) for role in ("forward", "backward"))
        return self._parts * ([forward] * (not self._last) + [backward] * (not self._first))

    def evaluate(self, input_ids: paddle.Tensor, labels: paddle.Tensor) -> float:
        """The loss of a batch; call it under ``paddle.no_grad``."""
        inputs = input_ids
        if not self._first:
            rows, length = input_ids._local_shape
            part = paddle.empty(self._hidden_shape(rows, length), self._dtype)
            dist.recv(part, src=self._group.ranks[self._number - 1], group=self._group)
            inputs = dtensor_from_local(part, self._mesh, self._between)
        hidden = self._layer(inputs)
        if self._last:
            return self.broadcast(float(self._causal.loss(hidden, labels)))
        dist.send(hidden._local_value(), dst=self._group.ranks[self._number + 1], group=self._group)
        return self.broadcast(0.0)

    def broadcast(self, loss: float) -> float:
        """Broadcast the last stage's loss to all stages; the other stages may pass any number."""
        value = paddle.to_tensor([loss], dtype="float32")
        dist.broadcast(value, src=self._group.ranks[-1], group=self._group)
        return float(value)

    def _schedule(self, input_ids: paddle.Tensor) -> _Schedule:
        """The pipeline schedule for batches of this shape."""
        rows, length = input_ids._local_shape
        key = (rows, length)
        if key not in self._schedules:
            rows //= self._parts
            ids = self._meta([rows, length], "int64", placements(0, None))
            hidden = self._meta(self._hidden_shape(rows, length), self._dtype, self._between)
            stage = _Stage(
                self._layer,
                self._number,
                self._stages,
                input_args=ids if self._first else hidden,
                output_args=hidden,
                group=self._group,
            )
            stage.grads_meta = (hidden,)  # `_StageLayer` places the gradients
            stage.sums = self._sums
            self._schedules[key] = _Schedule(stage, self._parts, self._loss)
        return self._schedules[key]

    def _loss(self, hidden, labels):
        return self._causal.loss(hidden, labels) * (1 / self._parts)  # see ``Session``

    def _hidden_shape(self, rows: int, length: int) -> list[int]:
        """This process's shard of hidden states [B, S, H]."""
        parts = self._mesh.get_dim_size(meshes.TENSOR_AXIS) if self._between[1].is_shard() else 1
        if length % parts:
            raise UserError(
                f"rows of {length} tokens cannot be split by tp={parts} between the stages of a pipeline; "
                "choose another length, or omit sequence_parallel"
            )
        return [rows, length // parts, self._causal.model.config.hidden_size]

    @property
    def _dtype(self) -> paddle.dtype:
        return self._causal.model.parameters()[0].dtype

    def _meta(self, shape: list[int], dtype, placed: list) -> TensorMeta:
        tensor = dtensor_from_local(paddle.zeros(shape, dtype), self._mesh, placed)
        tensor.stop_gradient = tensor.dtype == paddle.int64
        meta = TensorMeta(tensor)
        meta.placements = placed  # the tensor's own placements are freed with the tensor
        return meta


class _StageLayer(paddle.nn.Layer):
    """The computation of a stage on a micro batch.

    Hidden states and their gradients have the placements ``between``.
    """

    def __init__(self, model, mesh: dist.ProcessMesh, between: list, first: bool):
        super().__init__()
        self.model, self._mesh, self._between, self._first = model, mesh, between, first

    def forward(self, inputs):
        if self._first:
            return self.model.llama(inputs)[0]
        if not inputs.stop_gradient:
            inputs.register_hook(lambda gradient: dist.reshard(gradient, self._mesh, self._between))
        return self.model.llama(inputs_embeds=inputs)[0]


class _Stage(PipelineStage):
    """Paddle's stage, which adds the gradients to ``sums`` after each backward pass."""

    sums: GradientSums

    def backward_one_chunk(self, *arguments, **options):
        gradients = super().backward_one_chunk(*arguments, **options)
        self.sums.add()
        return gradients


class _Schedule(Schedule1F1B):
    """Paddle's schedule for a known input shape; Paddle itself runs a micro batch twice to infer it."""

    def _initialize_stage(self, arguments, options, labels):
        self._stage._prepare_forward_infra(self._n_microbatches, arguments, options)
        self._stage._prepare_backward_infra(self._n_microbatches)
        self._stage_initialized = True
