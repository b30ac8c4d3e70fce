"""Expert parallelism (``--expert_parallel_degree``): tokens are dispatched to the ranks of their experts.

The ranks have different samples, as in data parallelism, or different tokens of a sample (sequence
parallelism, Ulysses and ring). N consecutive ranks of a pipeline stage share the experts of every MoE layer;
groups of N are replicas. A loss is the mean over the data ranks and the sum over the ranks of a sample, so

    gradient of an expert = sum over the tokens of all ranks of the ranks' own gradients / data ranks

The backward pass sums over the tokens of a group. Each rank's optimizer updates its own experts, also with
sharding stage 1. The norm for clipping counts every expert once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.nn.clip import ClipGradBase, _squared_l2_norm

from llm_npu.core.console import say
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import communicators
from llm_npu.models import own_experts
from llm_npu.models.library import names
from llm_npu.models.own_experts import is_own
from llm_npu.parallel import overlap
from llm_npu.parallel.features import PipelineTrainer
from llm_npu.parallel.overlap.product import SERIAL
from llm_npu.parallel.sequence import SplitTrainer
from llm_npu.surgery.moe import router_scores
from llm_npu.training.nonfinite import gradient_of
from llm_npu.training.run import Feature, Run
from llm_npu.training.trainer import PretrainTrainer
from llm_npu.training.upstream_trainer import TrainerCallback, optimizer_wrappers


@dataclass(frozen=True)
class ExpertGroups:
    """The groups of this rank.

    Attributes:
        experts: the ranks that share the experts.
        replicas: the ranks with the same experts; None if that is this rank alone.
    """

    experts: object
    replicas: object | None

    @classmethod
    def of(cls, ranks: int) -> ExpertGroups:
        """The groups of a run in which ``ranks`` ranks share the experts. Collective over all ranks."""
        groups = []
        for stage in own_experts.stages():
            groups += [stage[first : first + ranks] for first in range(0, len(stage), ranks)]
            if len(stage) > ranks:
                groups += [stage[first::ranks] for first in range(ranks)]
        experts, *replicas = communicators(groups)
        return cls(experts, replicas[0] if replicas else None)


class ClipWithExperts(ClipGradBase):
    """``ClipGradByGlobalNorm`` over the parameters of all ranks.

    Args:
        clip_norm: the maximum of the norm.
        experts: the group that shares the experts.
        tensor: the group that splits weights.
        sharding: the group over which the other gradients are sharded.
        stages: the group of the pipeline.

    The last three are None without that method.
    """

    def __init__(self, clip_norm: float, experts, tensor, sharding, stages):
        super().__init__()
        self.clip_norm = clip_norm
        self._experts, self._tensor, self._sharding, self._stages = experts, tensor, sharding, stages

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads):
        clipped = [(p, g) for p, g in params_grads if g is not None and getattr(p, "need_clip", True)]
        norm = paddle.sqrt(self._squares(clipped))
        most = paddle.full([], self.clip_norm, norm.dtype)
        scale = most / paddle.maximum(norm, most)
        for _, gradient in clipped:
            gradient.multiply_(scale.astype(gradient.dtype))
        return params_grads

    def _squares(self, params_grads) -> paddle.Tensor:
        """The sum of squares over all ranks, a float32 tensor with the same bits on all of them."""
        # Several stages may have a copy of a weight, such as a tied embedding.
        once = [(p, g) for p, g in params_grads if getattr(p, "is_firstly_shared", True)]
        own, others = ([(p, g) for p, g in once if is_own(p) is kind] for kind in (True, False))
        split, whole = (
            [(p, g) for p, g in others if bool(p.is_distributed) is kind] for kind in (True, False)
        )
        total = _sum_over(_sum_of_squares(own), self._experts)
        of_shards = _sum_of_squares(whole) + _sum_over(_sum_of_squares(split), self._tensor)
        return _sum_over(total + _sum_over(of_shards, self._sharding), self._stages).reshape([])


def _sum_of_squares(params_grads: list) -> paddle.Tensor:
    squares = [_squared_l2_norm(gradient).astype("float32").reshape([1]) for _, gradient in params_grads]
    return paddle.concat(squares).sum(keepdim=True) if squares else paddle.zeros([1])


def _sum_over(value: paddle.Tensor, group) -> paddle.Tensor:
    """``value``, summed in-place over the ranks of ``group``; unchanged if that is None."""
    if group is not None:
        dist.all_reduce(value, group=group)
    return value


def _groups_of_methods() -> list:
    """The groups of tensor parallelism, sharding and the pipeline, for `ClipWithExperts`."""
    fleets = getattr(fleet.fleet, "_hcg", None)
    if fleets is None:  # plain data parallelism
        return [None] * 3
    groups = (
        fleets.get_model_parallel_group(),
        fleets.get_sharding_parallel_group(),
        fleets.get_pipe_parallel_group(),
    )
    return [group if group.nranks > 1 else None for group in groups]


class ReduceExpertGradients(TrainerCallback):
    """Completes the gradients of experts before the optimizer's step."""

    def __init__(self, groups: ExpertGroups):
        self._groups = groups

    def on_optimizer_begin(self, args, state, control, model=None, **kwargs):
        with paddle.no_grad():
            for parameter in filter(is_own, model.parameters()):
                gradient = gradient_of(parameter)
                gradient.scale_(1 / args.dataset_world_size)
                if self._groups.replicas is not None:
                    dist.all_reduce(gradient, group=self._groups.replicas)


def keep_experts(sharding) -> None:
    """Leave experts out of sharding stage 1 (``DygraphShardingOptimizer``): each rank updates its own."""
    parameters, own = sharding._parameter_list, sharding._sharding_rank
    sharding._parameter_list = [parameter for parameter in parameters if not is_own(parameter)]
    shared = sharding._partition_parameters()
    sharding._parameter_list = parameters
    sharding._rank2params = shared | {own: [*shared[own], *filter(is_own, parameters)]}
    sharding._param2rank = sharding._map_param_to_rank()
    for name in ("_parameter_list", "_param_groups"):
        sharding._set_inner_opt_attr(name, sharding._rank2params[own])
    reduce, synchronize = sharding.reduce_gradients, sharding._sharding_sync_parameters

    def reduce_gradients(parameter_list, hcg):
        reduce([parameter for parameter in parameter_list if not is_own(parameter)], hcg)

    def _sharding_sync_parameters():
        updated, sharding._rank2params = sharding._rank2params, shared
        try:
            synchronize()
        finally:
            sharding._rank2params = updated

    vars(sharding).update(
        reduce_gradients=reduce_gradients, _sharding_sync_parameters=_sharding_sync_parameters
    )


class ExpertTrainer(PretrainTrainer):
    """The trainer of a model whose experts are distributed over ranks.

    Attributes:
        groups: set after construction.
    """

    groups: ExpertGroups

    def create_optimizer(self, lr_scheduler=None):
        optimizer = super().create_optimizer(lr_scheduler)
        if optimizer._grad_clip is not None:
            norm = optimizer._grad_clip.clip_norm
            optimizer._grad_clip = ClipWithExperts(norm, self.groups.experts, *_groups_of_methods())
        return optimizer

    def _wrap_model(self, model, training=True):
        wrapped = super()._wrap_model(model, training)
        for optimizer in optimizer_wrappers(self.optimizer):
            if "_rank2params" in vars(optimizer):
                keep_experts(optimizer)
        return wrapped


class ExpertPipelineTrainer(ExpertTrainer, PipelineTrainer):
    """The same, with stages of the model on different ranks."""


class ExpertSplitTrainer(ExpertTrainer, SplitTrainer):
    """The same, with parts of every sequence on different ranks."""


# The trainer with distributed experts, by the trainer of the run's other methods.
TRAINERS = {
    PretrainTrainer: ExpertTrainer,
    PipelineTrainer: ExpertPipelineTrainer,
    SplitTrainer: ExpertSplitTrainer,
}


def _chunks(setting: str, group) -> int | Callable:
    """``chunks`` of ``paddle_fused.expert_parallel`` for ``--expert_overlap``."""
    chooser = overlap.chooser(setting, say)
    if isinstance(chooser, overlap.Planner):
        return partial(chooser.chunks_of_experts, group)
    return chooser.chunks


class ExpertParallel(Feature):
    """``--expert_parallel_degree``: ranks share the experts of every MoE layer."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.expert_ranks > 1

    def configure(self, run: Run) -> None:
        run.arguments.training.use_expert_parallel = True  # gradients are reduced without experts
        for name, value in names.UNDIVIDED.items():  # of experts, which tensor parallelism does not split
            if hasattr(run.model_config, name):
                setattr(run.model_config, name, value)
        run.trainer_kind = TRAINERS[run.trainer_kind]

    def on_model(self, run: Run) -> None:
        if reasons := run.fused.reasons("moe"):
            raise UserError(
                f"--expert_parallel_degree {run.arguments.expert_ranks} needs fused MoE layers, which "
                f"dispatch the tokens, but this model has others: {'; '.join(reasons)}; change the model's "
                "configuration, or remove the flag"
            )
        self._groups = ExpertGroups.of(run.arguments.expert_ranks)
        if share := own_experts.share_of_model(run.model):  # a pipeline stage may have no MoE layer
            share.group = self._groups.experts
            share.chunks = _chunks(run.arguments.training.expert_overlap or SERIAL, share.group)
        if run.model_config.sequence_parallel and getattr(run.model_config, router_scores.ROUTER_LOSS, False):
            router_scores.share(run.model, router_scores.TENSOR_PARALLEL)

    def on_trainer(self, run: Run) -> None:
        run.trainer.groups = self._groups
        run.trainer.add_callback(ReduceExpertGradients(self._groups))
