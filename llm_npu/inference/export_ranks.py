"""Export one program per rank from an annotated model.

    mesh = Mesh(tensor=2, auto=True)                     # on each of 2 ranks
    mesh.join()
    export_ranks(checkpoint, "served", mesh, (4, 512))
    predictor = export.load("served")                    # in new processes, on each of 2 ranks

``served`` contains a subfolder per rank and must be visible to all ranks. The programs contain the
collectives.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import paddle
import paddle.distributed as dist

import paddle_fused
from llm_npu import surgery
from llm_npu.core.atomic import publish, unfinished
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks, wait
from llm_npu.parallel.mesh import Degrees
from paddle_fused import strict_json

from . import export, parts
from .generate import inference
from .mesh import Mesh
from .program import Logits, Program

# Attributes of auto-parallel's passes, which program files cannot store.
ATTRIBUTES = ("chunk_id", "op_role")


def export_ranks(
    checkpoint: str | Path,
    folder: str | Path,
    mesh: Mesh,
    shape: tuple[int, int],
    *,
    dtype: str | None = None,
    backend: str = "native",
) -> Path:
    """Write a checkpoint's programs to the new folder ``folder`` and return the folder. Collective.

    Args:
        checkpoint: as for ``Mesh.load_model``.
        mesh: with ``auto`` and a single stage; the ranks must have called ``join``.
        shape: B and T of the programs, to which the predictors pad batches.
        dtype: as for ``Mesh.load_model``.
        backend: as for ``export.export``.

    Raises:
        UserError: as ``export.export`` and ``Mesh.check``.
    """
    folder, of_run = Path(folder), Ranks.of_run()
    if not mesh.auto or mesh.pipeline > 1:
        raise UserError(
            "programs for several ranks need annotations and a single stage; use Mesh(tensor=N, auto=True)"
        )
    mesh.check(checkpoint)
    export.check_target(folder, backend)
    model = parts.load_placed(checkpoint, dtype, Degrees(tp=mesh.tensor), to_static=True)
    about = export.describe(model, backend, shape) | {"ranks": mesh.ranks}
    surgery.apply_fused_kernels(model)
    placed_on = dist.auto_parallel.get_mesh()
    try:
        with inference(model), paddle.no_grad(), paddle_fused.use_backend(backend, strict=True):
            program = Program(Logits(model, placed_on), model, placed_on, [list(shape)])
    except paddle_fused.BackendError as error:
        raise export.unsupported(backend, error) from None
    with unfinished(folder) if of_run.first else nullcontext() as own:
        new = of_run.from_first(own)
        with of_run.raise_on_all_ranks():
            about["rings"] = _save(program, new / export.of_rank(of_run.rank))
        if of_run.first:
            (new / export.ABOUT).write_text(strict_json.dumps(about, indent=2) + "\n")
            publish(new, folder)
    wait()
    return folder


def _save(program: Program, folder: Path) -> list[int]:
    """Write the program and its parameters; return its communicator numbers."""
    operations = program.dense.global_block().ops
    for operation in operations:
        for name in ATTRIBUTES:
            if operation.has_attr(name):
                operation.erase_attr(name)
    (ids,) = [
        operation.result(0)
        for operation in operations
        if operation.name() == "pd_op.data" and operation.attrs()["name"] == program.names[0]
    ]
    paddle.enable_static()
    try:
        with paddle.static.scope_guard(program.scope):
            paddle.static.save_inference_model(
                str(folder / Path(export.PROGRAM).stem),
                [ids],
                [program.output],
                program.executor,
                program=program.dense,
            )
    finally:
        paddle.disable_static()
    return sorted({operation.attrs()["ring_id"] for operation in operations if operation.has_attr("ring_id")})
