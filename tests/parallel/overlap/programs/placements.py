"""A block of distributed tensors: its row-parallel layer sums while it multiplies."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist

from llm_npu.parallel.overlap import apply_overlap, remove_overlap

BATCH, SEQUENCE, HIDDEN, WIDE = 2, 8, 24, 40


def examine(group) -> dict:
    """For whole and for split results: the placement, and errors in parts of the largest value."""
    mesh = dist.ProcessMesh([list(range(group.nranks))], dim_names=["dp", "mp"])
    random = np.random.default_rng(0)
    x, up, down, gradient = (
        random.standard_normal(shape).astype("float32")
        for shape in ((BATCH, SEQUENCE, HIDDEN), (HIDDEN, WIDE), (WIDE, HIDDEN), (BATCH, SEQUENCE, HIDDEN))
    )
    hidden = x @ up
    expected = {
        "result": hidden @ down,
        "up": np.einsum("bsh,bsw->hw", x, gradient @ down.T),
        "down": np.einsum("bsw,bsh->wh", hidden, gradient),
    }
    results = {}
    for name, split in (("whole", None), ("split", 1)):
        model = paddle.nn.Sequential(paddle.nn.Linear(HIDDEN, WIDE), paddle.nn.Linear(WIDE, HIDDEN))
        for layer, weight, dim in zip(model, (up, down), (1, 0), strict=True):
            part = np.split(weight, group.nranks, axis=dim)[group.rank]
            layer.weight = layer.bias = None
            layer._parameters["weight"] = _placed(part, mesh, [dist.Replicate(), dist.Shard(dim)])
            layer.weight.stop_gradient = False
        report = apply_overlap(model, "pipelined:2", split=split, strict=True)
        result = model(_placed(x, mesh, [dist.Replicate()] * 2))
        local = gradient if split is None else np.split(gradient, group.nranks, axis=split)[group.rank]
        paddle.autograd.backward([result], [_placed(local, mesh, result.placements)])
        values = {"result": result, "up": model[0].weight.grad, "down": model[1].weight.grad}
        dims = {"result": split, "up": 1, "down": 0}
        results[name] = {
            "placement": str(result.placements[1]),
            "errors": {key: _error(values[key], expected[key], dims[key], group) for key in values},
            "summary": report.summary(),
            "removed": remove_overlap(model),
        }
    return results


def _placed(local, mesh, placements):
    return dist.auto_parallel.api.dtensor_from_local(paddle.to_tensor(local), mesh, placements)


def _error(tensor, whole, dim, group) -> float:
    wanted = whole if dim is None else np.split(whole, group.nranks, axis=dim)[group.rank]
    return float(np.abs(tensor._local_value().numpy() - wanted).max() / np.abs(wanted).max())
