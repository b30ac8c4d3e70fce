"""Text about a plan's effect on a model: the placement of each parameter, and each communication's bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import virtual_npu
from llm_npu.core.ranks import gathered
from llm_npu.parallel.communication import BYTES, Collective, table
from llm_npu.parallel.session import Session


def parameters(session: Session) -> list[str]:
    """A line per parameter of this process; equal lines of several layers are merged."""
    counted: dict[tuple[str, str], int] = {}
    everywhere = "process of the stage" if session.settings.degrees.pp > 1 else "process"
    for name, parameter in session.model.named_parameters():
        line = re.sub(r"\.\d+\.", ".*.", name), _placed(parameter, everywhere)
        counted[line] = counted.get(line, 0) + 1
    width = max(len(name) for name, _ in counted)
    return [f"{name:<{width}}  {times:>3} x {placed}" for (name, placed), times in counted.items()]


def _placed(parameter, everywhere: str) -> str:
    mesh, parts, split = parameter.process_mesh, 1, []
    for axis, size, placement in zip(mesh.dim_names, mesh.shape, parameter.placements, strict=True):
        if placement.is_shard() and size > 1:
            parts *= size
            split.append(f"dimension {placement.get_dim()} over {axis}")
    shape, dtype = list(parameter.shape), str(parameter.dtype).rpartition(".")[2]
    size = math.prod(shape) * BYTES[dtype]
    where = f"split: {', '.join(split)}" if split else f"whole on every {everywhere}"
    return f"{shape} {dtype}, {where}; {-(-size // parts):,} of {size:,} bytes on each"


def communication(session: Session, collectives: Sequence[Collective]) -> list[str]:
    """Lines about the ``collectives`` of one step, from ``collectives_of`` or ``collectives_sent``.

    In a pipeline, the first process of each stage reports; all processes must call it.
    """
    mode = "the program of a step" if session.settings.to_static else "a step in dygraph"
    if not collectives and session.settings.degrees.pp == 1:
        return [f"communication of {mode}: none"]
    own = table(list(collectives)) if collectives else ["none"]
    return [f"communication of {mode}:", *_indented(session, _by_stage(session, own))]


def explain(session: Session, collectives: Sequence[Collective] | None = None) -> str:
    """The text of ``--explain_parallel``; without ``collectives``, only the placements.

    Covers every stage of a pipeline; all processes must call it.
    """
    lines = [f"parallel {session.settings}", *_indented(session, _by_stage(session, parameters(session)))]
    if collectives is not None:
        lines += communication(session, collectives)
    return "\n".join(lines)


def _by_stage(session: Session, own: list[str]) -> dict[int, list[str]]:
    """The lines of the first process of each stage; ``own`` are this process's lines."""
    degrees = session.settings.degrees
    if degrees.pp == 1 or virtual_npu.is_dry():  # a dry run has one stage at a time
        return {degrees.stage: own}
    return dict(enumerate(gathered(own)[:: degrees.dp * degrees.tp]))


def _indented(session: Session, stages: dict[int, list[str]]) -> list[str]:
    """The indented lines of all stages; a pipeline gets a heading per stage."""
    degrees, lines = session.settings.degrees, []
    if degrees.pp == 1:
        return [f"  {line}" for line in stages[0]]
    size = degrees.dp * degrees.tp
    for stage, of_stage in stages.items():
        first, last = stage * size, (stage + 1) * size - 1
        processes = f"process {first}" if size == 1 else f"processes {first} to {last}"
        lines += [f"  stage {stage} ({processes})", *(f"    {line}" for line in of_stage)]
    return lines
