"""The layout of a published run over cards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape


@dataclass(frozen=True)
class PublishedLayout(Layout):
    """The layout of another program's run.

    ``mask``: also the "band" of a sliding window. ``recompute_granularity``: also "activation", that function
    alone. ``layers_of_stages``: of pipeline stages, None for PaddleNLP's rule; ``recomputed``: in how many
    layers of each stage, None for all.
    """

    CHOICES: ClassVar = Layout.CHOICES | {
        "mask": ("causal", "band"),
        "recompute_granularity": ("full", "full_attn", "core_attn", "activation"),
    }

    layers_of_stages: tuple[int, ...] | None = None
    recomputed: tuple[int, ...] | None = None

    @property
    def sharding_degree(self) -> int:
        return self.replicas if self.sharding else 1

    @property
    def of_layers(self) -> PublishedLayout:
        cards = self.tensor_parallel_degree * self.context_parallel_degree * self.expert_parallel_degree
        own = {"layers_of_stages": None, "recomputed": None, "global_batch_size": 0}
        return replace(self, cards=cards, pipeline_parallel_degree=1, virtual_pp_degree=1, sharding="", **own)

    def has_logits(self, shape: ModelShape) -> bool:
        return True

    def stage_layers(self, shape: ModelShape) -> tuple[int, ...]:
        return self.layers_of_stages or super().stage_layers(shape)

    def recompute_layers(self, shape: ModelShape, stage: int) -> int:
        layers = super().recompute_layers(shape, stage)
        return layers if self.recomputed is None else min(layers, self.recomputed[stage])
