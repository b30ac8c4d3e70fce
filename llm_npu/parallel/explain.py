"""What a plan does to a model, in words: each parameter's placement, each communication and its bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from llm_npu.parallel.communication import BYTES, Collective, table
from llm_npu.parallel.session import Session


def parameters(session: Session) -> list[str]:
    """A line for each parameter, the same one of several layers together."""
    counted: dict[tuple[str, str], int] = {}
    for name, parameter in session.model.named_parameters():
        line = re.sub(r"\.\d+\.", ".*.", name), _placed(parameter)
        counted[line] = counted.get(line, 0) + 1
    width = max(len(name) for name, _ in counted)
    return [f"{name:<{width}}  {times:>3} x {placed}" for (name, placed), times in counted.items()]


def _placed(parameter) -> str:
    mesh, parts, split = parameter.process_mesh, 1, []
    for axis, size, placement in zip(mesh.dim_names, mesh.shape, parameter.placements, strict=True):
        if placement.is_shard() and size > 1:
            parts *= size
            split.append(f"dimension {placement.get_dim()} over {axis}")
    shape, dtype = list(parameter.shape), str(parameter.dtype).rpartition(".")[2]
    size = math.prod(shape) * BYTES[dtype]
    where = f"split: {', '.join(split)}" if split else "whole on every process"
    return f"{shape} {dtype}, {where}; {-(-size // parts):,} of {size:,} bytes on each"


def communication(session: Session, collectives: Sequence[Collective]) -> list[str]:
    """Lines about the ``collectives`` of one step, from ``collectives_of`` or ``collectives_sent``."""
    mode = "the program of a step" if session.settings.to_static else "a step in dygraph"
    if not collectives:
        return [f"communication of {mode}: none"]
    return [f"communication of {mode}:", *(f"  {line}" for line in table(list(collectives)))]


def explain(session: Session, collectives: Sequence[Collective] | None = None) -> str:
    """The text of ``--explain_parallel``; without ``collectives`` of the placements only."""
    lines = [f"parallel {session.settings}", *(f"  {line}" for line in parameters(session))]
    if collectives is not None:
        lines += communication(session, collectives)
    return "\n".join(lines)
