"""Runs rows of the table in this process, one of two."""

from __future__ import annotations

import traceback

import numpy as np
import paddle
import paddle.distributed as dist

from auto_parallel.row import Row
from paddle_fused import BackendError, dispatch_log, paddle_release, reset_dispatch_log, use_backend
from paddle_fused.parity import ROUNDING, Case
from paddle_fused.registry import all_cases


def run(row: Row, case: Case, mesh, backend: str) -> dict:
    """The results by name; split as the row says on ``mesh``, or whole if it is None."""

    def tensor(name, array, split: int | None):
        carried = paddle.to_tensor(array)
        if array.dtype.kind == "f":
            carried = carried.astype("float32" if name in case.case.keep_float32 else case.dtype)
        if mesh is None:
            return carried
        return dist.shard_tensor(carried, mesh, [dist.Replicate() if split is None else dist.Shard(split)])

    tensors = {name: tensor(name, array, row.split.get(name)) for name, array in case.arrays.items()}
    for name in case.case.gradients:
        tensors[name].stop_gradient = False
    with use_backend(backend, strict=True):
        outputs = case.case.call(tensors)
    # The gradient of an output lies as the output does, and whole if that is a term of a sum.
    cotangents = [
        tensor("", array, dimension(output)).astype(output.dtype)
        for array, output in zip(case.output_gradients, outputs, strict=True)
    ]
    # Not paddle.grad: of distributed tensors it takes no gradients of outputs, it crashes.
    if paddle_release.at_least(3, 1):
        paddle.autograd.backward(list(outputs), cotangents)
        gradients = {name: tensors[name].grad for name in case.case.gradients}
    else:  # 3.0 fails for two outputs of one operator, and adds no distributed gradients on npu
        gradients = {}
        for pair in zip(outputs, cotangents, strict=True):
            paddle.autograd.backward(*pair, retain_graph=True)
            for name in case.case.gradients:
                gradient = tensors[name].grad
                gradients[name] = gradient if name not in gradients else gradients[name] + gradient
                tensors[name].clear_gradient(False)
    results = {f"output {i}": output for i, output in enumerate(outputs)}
    return results | {f"gradient of {name}": gradient for name, gradient in gradients.items()}


def dimension(tensor) -> int | None:
    """The dimension along which a tensor is split, if it is."""
    return tensor.placements[0].get_dim() if tensor.is_dist() and tensor.placements[0].is_shard() else None


def placement_of(tensor) -> str:
    split = dimension(tensor)
    if split is not None:
        return f"S{split}"
    return "P" if tensor.placements[0].is_partial() else "R"


def values_of(tensor) -> np.ndarray:
    whole = dist.unshard_dtensor(tensor) if tensor.is_dist() else tensor
    return whole.astype("float32").numpy()


def examine(row: Row, mesh, backend: str, dtype: str) -> dict:
    cases = [listed for listed in all_cases() if (listed.operator, listed.name) == (row.operator, row.case)]
    assert len(cases) == 1, f"{len(cases)} cases of {row.operator} are named {row.case!r}"
    case = Case(cases[0], dtype)
    try:
        alone = run(row, case, None, backend)
    except BackendError as error:
        try:
            run(row, case, mesh, backend)
        except BackendError:
            return {"refused": error.reasons[backend]}
        return {"failure": f"one process is refused, and two are not: {error}"}
    reset_dispatch_log()
    split = run(row, case, mesh, backend)
    ran = dispatch_log()
    results = {}
    for name, tensor in split.items():
        value, serial, truth = values_of(tensor), values_of(alone[name]), case.truth[name]
        results[name] = {
            "placement": placement_of(tensor),
            "local_shape": list(tensor._local_value().shape),
            "equal": value.shape == serial.shape and value.tobytes() == serial.tobytes(),
            "error": float(np.abs(value - truth).max(initial=0.0)),
            "serial_error": float(np.abs(serial - truth).max(initial=0.0)),
            "rounding": ROUNDING[dtype] * float(np.abs(truth).max(initial=0.0)),
        }
    return {
        "backends": sorted({entry.backend for entry in ran}),
        "resharded": [note for entry in ran for note in entry.resharded],
        "results": results,
    }


def examined(rows: list[Row], mesh, backend: str, dtype: str) -> dict[str, dict]:
    rows_of = {}
    for row in rows:
        try:
            rows_of[str(row)] = examine(row, mesh, backend, dtype)
        except Exception:
            rows_of[str(row)] = {"failure": traceback.format_exc()}
    return rows_of
