"""Models in which each rank has some of the experts of every MoE layer (``--expert_parallel_degree``).

The other experts are None in ``block.experts``, so that parameters keep their names: a checkpoint does not
depend on the number of ranks. Parameters of experts are marked ``no_sync``: Paddle neither broadcasts them
nor reduces their gradients. Tensor parallelism does not split experts; with sequence parallelism, each rank
routes its own tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps

import paddle.distributed as dist
from paddle.distributed import fleet

from . import degrees, families

SHARE = "_expert_share"  # attribute of blocks
SHARED = "shared_expert"  # Qwen2-MoE's, which tensor parallelism splits
ROUTERS = ("gate", "shared_expert_gate")  # layers of blocks that every rank has as a whole


@dataclass
class ExpertShare:
    """A rank's share of the experts of every MoE layer.

    Attributes:
        rank, ranks: the rank in the group that shares the experts, and the number of its ranks.
        group: of ``paddle.distributed``; set before the first forward pass.
        chunks: of experts, as for ``paddle_fused.expert_parallel``.
    """

    rank: int
    ranks: int
    group: object = None
    chunks: int | Callable = 1

    @classmethod
    def of_rank(cls, rank: int, ranks: int) -> ExpertShare:
        """The share of a rank of the run; ``ranks`` consecutive ranks of a stage share the experts."""
        place = next(stage.index(rank) for stage in stages() if rank in stage)
        return cls(place % ranks, ranks)

    def of(self, experts: int) -> range:
        """The numbers of this rank's experts."""
        own = experts // self.ranks
        return range(self.rank * own, (self.rank + 1) * own)


def stages() -> list[list[int]]:
    """The ranks of each pipeline stage; a single stage without a pipeline."""
    groups = getattr(fleet.fleet, "_hcg", None)
    if groups is None:
        return [list(range(dist.get_world_size()))]
    topology = groups.topology()
    return [sorted(topology.get_axis_list("pipe", stage)) for stage in range(topology.get_dim("pipe"))]


@contextmanager
def built(model_type: str, share: ExpertShare) -> Iterator[None]:
    """A context in which new models of a family have only the experts of ``share``.

    An MoE layer is first built with all experts; the others are freed before the next layer is built.
    """
    module, family = sys.modules[families.model_class(model_type).__module__], families.FAMILIES[model_type]
    blocks = [getattr(module, name) for name in family.layers["moe"]]
    upstream = {block: block.__init__ for block in blocks}

    def building(init):
        @wraps(init)
        def build(block, config, *args, **kwargs):
            # Blocks of the other families have whole experts.
            splits = family.experts.tensor_parallel not in ("number", "nothing")
            init(block, degrees.undivided(config) if splits else config, *args, **kwargs)
            _keep(block, share)
            if splits and hasattr(block, SHARED):
                shared = getattr(block, SHARED)
                setattr(block, SHARED, type(shared)(config, is_shared=True))
            for router in filter(None, (getattr(block, name, None) for name in ROUTERS)):
                for parameter in router.parameters():
                    parameter.sequence_parallel = config.sequence_parallel

        return build

    for block, init in upstream.items():
        block.__init__ = building(init)
    try:
        yield
    finally:
        for block, init in upstream.items():
            block.__init__ = init


def _keep(block, share: ExpertShare) -> None:
    own = share.of(len(block.experts))
    for number in range(len(block.experts)):
        if number not in own:
            block.experts._sub_layers[str(number)] = None
    for parameter in block.experts.parameters():
        parameter.expert = parameter.no_sync = True
        parameter.sequence_parallel = False  # a rank has the gradient of all tokens
    block.__dict__[SHARE] = share


def share_of(block) -> ExpertShare | None:
    """The share that a block's experts belong to; None if the block has all experts."""
    return block.__dict__.get(SHARE)


def of_block(block) -> list:
    """The experts that this rank has."""
    return list(block.experts) if share_of(block) is None else [e for e in block.experts if e is not None]


def share_of_model(model) -> ExpertShare | None:
    """The share of a model's experts; None if the model has all experts, or none."""
    return next(filter(None, map(share_of, model.sublayers(include_self=True))), None)


def is_own(parameter) -> bool:
    """Whether only the ranks with this expert have the parameter."""
    return getattr(parameter, "expert", False)
