"""``--moe_expert_capacity_factor``: experts drop choices beyond a capacity, and steps report their share."""

from __future__ import annotations

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.surgery.moe.capacity import Capacity
from llm_npu.training.run import Feature, Run
from llm_npu.training.upstream_trainer import TrainerCallback


class DroppedShare:
    """For a trainer: ``dropped_share`` of a step, and ``eval_dropped_share``, means over the ranks.

    Attributes:
        capacity: of the model; set after construction.
    """

    FIGURES = ("dropped_share",)
    capacity: Capacity

    def batch_figures(self) -> np.ndarray:
        return np.zeros(1) if self.model.training else np.array([self.capacity.take_share()])

    def _own_step(self) -> tuple[float, ...]:
        self.step_figures = np.array([self.capacity.take_share()])
        return super()._own_step()


class CountFromStepBegin(TrainerCallback):
    """Discards the choices of forward passes outside of steps, such as generated samples."""

    def __init__(self, capacity: Capacity):
        self._capacity = capacity

    def on_step_begin(self, args, state, control, **kwargs):
        self._capacity.take_share()


class ExpertCapacity(Feature):
    """``--moe_expert_capacity_factor``: experts have a capacity."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.moe_expert_capacity_factor is not None

    def configure(self, run: Run) -> None:
        kind = run.trainer_kind
        run.trainer_kind = type(kind.__name__, (DroppedShare, kind), {})

    def on_model(self, run: Run) -> None:
        if reasons := run.fused.reasons("moe"):
            raise UserError(
                "--moe_expert_capacity_factor needs fused MoE layers, which drop the tokens, but this model "
                f"has others: {'; '.join(reasons)}; change the model's configuration, or remove the flag"
            )
        self._capacity = Capacity(run.arguments.training.moe_expert_capacity_factor)
        self._capacity.limit(run.model)

    def on_trainer(self, run: Run) -> None:
        run.trainer.capacity = self._capacity
        run.trainer.add_callback(CountFromStepBegin(self._capacity))
