"""Forwards for fleet's parallel linear layers, and for PaddleNLP's LoRA layers on top of them.

Each function replaces the upstream forward and has its signature. ``self.overlap_options`` holds the backend
chooser and whether gathers are recomputed. Biases, LoRA's small matmuls and everything else are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.utils.sequence_parallel_utils import AllGatherOp, ReduceScatterOp

from .operators import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter, replicated_matmul
from .planner import Planner
from .product import Setting


@dataclass(frozen=True)
class Options:
    """The options of overlapped layers.

    ``split`` is the dimension along which results of distributed tensors are split, or None (placed.py).
    """

    overlap: str | Setting | Planner
    recompute_gather: bool
    split: int | None = None


def column(self, x):
    """ColumnParallelLinear: x is replicated, the weight is split by columns."""
    return _whole(self, _biased(_column(self, x), self.bias))


def row(self, x):
    """RowParallelLinear: the weight is split by rows."""
    return _biased(_row(self, _split(self, x)), self.bias)


def column_sequence(self, x):
    """ColumnSequenceParallelLinear: x is split along its first dimension, the sequence."""
    return _biased(_column_sequence(self, x), self.bias)


def row_sequence(self, x):
    """RowSequenceParallelLinear: the result is split along its first dimension."""
    return _biased(_row_sequence(self, x), self.bias)


def column_lora(self, input):
    result = _biased(_column(self, input), self.bias)
    if not (self.disable_lora or self.merged):
        low_rank = mp_ops._c_identity(self.lora_dropout(input) @ self.lora_A, group=self.model_parallel_group)
        result = result + (low_rank @ self.lora_B) * self.scaling
    return _whole(self, result)


def row_lora(self, x):
    x = _split(self, x)
    result = _row(self, x)
    if not (self.disable_lora or self.merged):
        low_rank = mp_ops._mp_allreduce(
            self.lora_dropout(x) @ self.lora_A,
            group=self.model_parallel_group,
            use_calc_stream=True,
            use_model_parallel=True,
        )
        result = result + (low_rank @ self.lora_B) * self.scaling
    return _biased(result, self.bias)


def column_sequence_lora(self, x):
    result = _biased(_column_sequence(self, x), self.bias)
    if not (self.disable_lora or self.merged):
        low_rank = AllGatherOp.apply(self.lora_dropout(x) @ self.lora_A)
        result = result + (low_rank @ self.lora_B) * self.scaling
    return result


def row_sequence_lora(self, x):
    result = _biased(_row_sequence(self, x), self.bias)
    if not (self.disable_lora or self.merged):
        low_rank = ReduceScatterOp.apply(self.lora_dropout(x) @ self.lora_A)
        result = result + (low_rank @ self.lora_B) * self.scaling
    return result


def _column(self, x):
    return replicated_matmul(x, self.weight, self.model_parallel_group, self.overlap_options.overlap)


def _row(self, x):
    return matmul_all_reduce(x, self.weight, self.model_parallel_group, self.overlap_options.overlap)


def _column_sequence(self, x):
    options = self.overlap_options
    return all_gather_matmul(
        x, self.weight, self.model_parallel_group, options.overlap, options.recompute_gather
    )


def _row_sequence(self, x):
    return matmul_reduce_scatter(x, self.weight, self.model_parallel_group, self.overlap_options.overlap)


def _split(self, x):
    return x if self.input_is_parallel else mp_ops._c_split(x, group=self.model_parallel_group)


def _whole(self, result):
    return mp_ops._c_concat(result, group=self.model_parallel_group) if self.gather_output else result


def _biased(result, bias):
    return result if bias is None else result + bias.astype(result.dtype)
