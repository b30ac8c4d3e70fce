"""The settings of training on a process mesh."""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.core.errors import UserError
from llm_npu.parallel.mesh import Degrees


@dataclass(frozen=True)
class Settings:
    """The settings of a session.

    Attributes:
        sharding: the stage (1: optimizer states, 2: also gradients, 3: also parameters, over dp), or 0.
        accumulation: micro batches per optimizer step; a pipeline passes them from stage to stage.
        recompute: whether decoder layers are recomputed in the backward pass.
        to_static: whether the step is a static program.
    """

    degrees: Degrees
    sequence_parallel: bool = False
    sharding: int = 0
    recompute: bool = False
    accumulation: int = 1
    to_static: bool = False

    def __post_init__(self):
        if self.sharding not in (0, 1, 2, 3):
            raise UserError(f"sharding is {self.sharding!r}; accepted: the stage 1, 2 or 3, or 0 for none")
        if self.accumulation < 1:
            raise UserError(f"accumulation is {self.accumulation}; accepted: 1 or more micro batches")

    def __str__(self) -> str:
        parts = [str(self.degrees)]
        parts += ["sequence parallel"] * self.sequence_parallel
        parts += [f"sharding stage {self.sharding}"] * (self.sharding > 0)
        parts += ["recompute"] * self.recompute
        parts += [f"accumulation {self.accumulation}"] * (self.accumulation > 1)
        parts += ["static"] * self.to_static
        return ", ".join(parts)
