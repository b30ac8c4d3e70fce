"""PaddleNLP's own MC2 layers, as they come, over the plugin's fused operators: ``paddlenlp_mc2.py FOLDER``.

FLAGS_NPU_MC2 must be set. Against plain products and collectives of the same inputs, which each rank knows.
"""

from __future__ import annotations

import numpy as np
import paddle
import ranks
from paddle.distributed import fleet
from paddlenlp.transformers import mc2_parallel_linear as mc2

strategy = fleet.DistributedStrategy()
world = paddle.distributed.ParallelEnv().world_size
strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": world, "pp_degree": 1}
fleet.init(is_collective=True, strategy=strategy)
group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
ROWS, DEPTH, COLUMNS = 48, 320, 288


def inputs(number: int, *shape) -> list[np.ndarray]:
    """One array for each rank, as bfloat16 has them."""
    random = np.random.default_rng(number)
    arrays = [random.standard_normal(shape).astype("float32") for _ in range(world)]
    return [paddle.to_tensor(array).astype("bfloat16").astype("float32").numpy() for array in arrays]


def run(layer, x, weight, gradient) -> list[np.ndarray]:
    """The result and both gradients."""
    tensors = [paddle.to_tensor(array[group.rank]).astype("bfloat16") for array in (x, weight, gradient)]
    tensors[0].stop_gradient = tensors[1].stop_gradient = False
    result = layer.apply(tensors[0], tensors[1], group)
    result.backward(tensors[2])
    return [tensor.astype("float32").numpy() for tensor in (result, tensors[0].grad, tensors[1].grad)]


def mine(array) -> np.ndarray:
    return np.split(array, world)[group.rank]


def errors(actual, expected) -> list[float]:
    """Largest differences, in parts of the largest value."""
    assert [array.shape for array in actual] == [other.shape for other in expected]
    return [
        float(np.abs(array - other).max() / np.abs(other).max())
        for array, other in zip(actual, expected, strict=True)
    ]


def column_sequence() -> list[float]:
    x, weight = inputs(1, ROWS, DEPTH), inputs(2, DEPTH, COLUMNS)
    gradient = inputs(3, ROWS * world, COLUMNS)
    everything = np.concatenate(x)
    summed = sum(block @ other.T for block, other in zip(gradient, weight, strict=True))
    expected = (everything @ weight[group.rank], mine(summed), everything.T @ gradient[group.rank])
    return errors(run(mc2.MC2ColumnSeqParallelCoreLinear, x, weight, gradient), expected)


def row_sequence() -> list[float]:
    x, weight = inputs(4, ROWS * world, DEPTH), inputs(5, DEPTH, COLUMNS)
    gradient = inputs(6, ROWS, COLUMNS)
    everything = np.concatenate(gradient)
    summed = sum(block @ other for block, other in zip(x, weight, strict=True))
    expected = (mine(summed), everything @ weight[group.rank].T, x[group.rank].T @ everything)
    return errors(run(mc2.MC2RowSeqParallelCoreLinear, x, weight, gradient), expected)


def row() -> list[float]:
    x, weight = inputs(7, 2, ROWS, DEPTH), inputs(8, DEPTH, COLUMNS)
    gradient = [inputs(9, 2, ROWS, COLUMNS)[0]] * world
    summed = sum(block @ other for block, other in zip(x, weight, strict=True))
    flat, wanted = x[group.rank].reshape(-1, DEPTH), gradient[0].reshape(-1, COLUMNS)
    expected = (summed, gradient[0] @ weight[group.rank].T, flat.T @ wanted)
    return errors(run(mc2.MC2RowParallelCoreLinear, x, weight, gradient), expected)


def column() -> list[float]:
    x, weight = [inputs(10, 2, ROWS, DEPTH)[0]] * world, inputs(11, DEPTH, COLUMNS)
    gradient = inputs(12, 2, ROWS, COLUMNS)
    summed = sum(block @ other.T for block, other in zip(gradient, weight, strict=True))
    flat, own = x[0].reshape(-1, DEPTH), gradient[group.rank].reshape(-1, COLUMNS)
    return errors(
        run(mc2.MC2ColumnParallelCoreLinear, x, weight, gradient),
        (x[0] @ weight[group.rank], summed, flat.T @ own),
    )


ranks.write({layer.__name__: layer() for layer in (column_sequence, row_sequence, row, column)})
