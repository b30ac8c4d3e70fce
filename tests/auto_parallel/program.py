"""Runs every row in this process, one of two; ``program.py FOLDER`` writes FOLDER/<rank>.json.

The processes are on the CPU place. Gloo lacks all-to-all and reduce-scatter there: a tensor can be split, put
together and summed, but what is split along one dimension cannot become split along another, and a sum cannot
become split. No row needs that.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from auto_parallel import static
from auto_parallel.row import Row
from auto_parallel.rows import all_rows
from paddle_fused import reset_what_ran, use_backend, what_ran
from paddle_fused.cases import all_cases
from paddle_fused.parity import ROUNDING, Case

DTYPE = "float32"


def run(row: Row, case: Case, mesh) -> dict:
    """The results by name; split as the row says on ``mesh``, or whole if it is None."""

    def tensor(array, split: int | None):
        carried = paddle.to_tensor(array.astype(DTYPE) if array.dtype.kind == "f" else array)
        if mesh is None:
            return carried
        return dist.shard_tensor(carried, mesh, [dist.Replicate() if split is None else dist.Shard(split)])

    tensors = {name: tensor(array, row.split.get(name)) for name, array in case.arrays.items()}
    for name in case.case.gradients:
        tensors[name].stop_gradient = False
    with use_backend("native", strict=True):
        outputs = case.case.call(tensors)
    # The gradient of an output lies as the output does, and whole if that is a term of a sum.
    cotangents = [
        tensor(array, dimension(output)) for array, output in zip(case.output_gradients, outputs, strict=True)
    ]
    # Not paddle.grad: of distributed tensors it takes no gradients of outputs, it crashes.
    paddle.autograd.backward(list(outputs), cotangents)
    results = {f"output {i}": output for i, output in enumerate(outputs)}
    return results | {f"gradient of {name}": tensors[name].grad for name in case.case.gradients}


def dimension(tensor) -> int | None:
    """The dimension along which a tensor is split, if it is."""
    return tensor.placements[0].get_dim() if tensor.is_dist() and tensor.placements[0].is_shard() else None


def placement_of(tensor) -> str:
    split = dimension(tensor)
    if split is not None:
        return f"S{split}"
    return "P" if tensor.placements[0].is_partial() else "R"


def examine(row: Row, mesh) -> dict:
    found = [one for one in all_cases() if (one.operator, one.name) == (row.operator, row.case)]
    assert len(found) == 1, f"{len(found)} cases of {row.operator} are named {row.case!r}"
    case = Case(found[0], DTYPE)
    reset_what_ran()
    alone, split = run(row, case, None), run(row, case, mesh)
    (ran,) = what_ran()
    results = {}
    for name, tensor in split.items():
        value, serial, truth = dist.unshard_dtensor(tensor).numpy(), alone[name].numpy(), case.truth[name]
        results[name] = {
            "placement": placement_of(tensor),
            "local_shape": list(tensor._local_value().shape),
            "equal": value.shape == serial.shape and value.tobytes() == serial.tobytes(),
            "error": float(np.abs(value - truth).max(initial=0.0)),
            "serial_error": float(np.abs(serial - truth).max(initial=0.0)),
            "rounding": ROUNDING[DTYPE] * float(np.abs(truth).max(initial=0.0)),
        }
    return {"backend": ran.backend, "results": results}


def main(folder: str, seed: int) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
    found = {}
    for row in all_rows():
        try:
            found[str(row)] = examine(row, mesh)
        except Exception:
            found[str(row)] = {"failure": traceback.format_exc()}
    static.use_gloo_in_static_programs()
    trained = {split: static.train_split(split, mesh, seed) for split in static.SPLITS}
    others = [static.train_alone(seed, *other) for other in static.OTHER_ORDERS]
    written = {"rows": found, "alone": static.train_alone(seed), "others": others, "split": trained}
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(written))


main(sys.argv[1], int(sys.argv[2]))
