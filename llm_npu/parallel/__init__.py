"""Auto-parallel: PaddleNLP's single-device Llama on a process mesh, in dygraph and as a static program.

    settings = Settings(Degrees(dp=2, tp=2), sequence_parallel=True, sharding=1, to_static=True)
    session = Session(model, settings, make_optimizer)
    loss = session.step(input_ids, labels)

``plan`` describes the placement of parameters and activations as data, ``apply`` applies it, and ``explain``
prints the placements and each communication with its bytes.
"""

from .apply import parallelize
from .mesh import Degrees, make
from .plan import ParallelPlan, Point, Rule, llama
from .session import Session
from .settings import Settings

__all__ = [
    "Degrees",
    "ParallelPlan",
    "Point",
    "Rule",
    "Session",
    "Settings",
    "llama",
    "make",
    "parallelize",
]
