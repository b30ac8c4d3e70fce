"""Single operations on one rank of a pipeline stage, with the sizes of that rank.

Bytes count every read and write of a tensor once per kernel; for tensors split by tensor parallelism, only
the rank's part.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddle_fused import registry

from ..layout import Layout
from ..shape import ModelShape
from .operations import Operation, collective

WIDTH, SINGLE = 2, 4  # bytes of bfloat16 and float32


def _fused(operator: str, **element: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A row of TRAFFIC: one kernel, with the operator's registered bytes."""
    cost = registry.find(operator).cost
    forward, both = (cost(WIDTH, backward, **element).bytes for backward in (False, True))
    return (forward, 1, forward), (both - forward, 1, both - forward)


# For a chain of kernels, forward and backward: bytes read and written per element, number of kernels, and
# bytes exchanged with other chains. Fused: one kernel in bfloat16. Composed: like the Python code of
# PaddleNLP and Megatron, with the norm and the softmax in float32.
TRAFFIC = {
    ("rms_norm", True): _fused("rms_norm", tokens=1, hidden=1),
    ("rms_norm", False): ((36, 6, 4), (60, 10, 6)),
    ("swiglu", True): _fused("swiglu", tokens=1, hidden=1),  # per element of I
    ("swiglu", False): ((18, 3, 6), (26, 4, 10)),
    ("rope", True): _fused("rotary_mul", tokens=1, heads=1, head_dim=1),
    ("rope", False): ((18, 5, 4), (18, 5, 4)),
    ("attention", False): ((40, 8, 4), (46, 10, 6)),  # per score, counted in a dry run of PaddleNLP's model
}


class Kernels:
    """The sizes on one rank of a stage, and single operations of these sizes."""

    def __init__(self, shape: ModelShape, layout: Layout):
        tp = layout.tensor_parallel_degree
        self.shape, self.layout, self.tp = shape, layout, tp
        self.batch, self.length = layout.per_device_train_batch_size, layout.max_seq_length
        self.tokens, self.queries = layout.tokens_per_rank, layout.max_seq_length
        self.rows = self.tokens // tp if layout.sequence_parallel else self.tokens
        self.hidden = shape.hidden_size
        self.query = shape.query_size // tp
        self.key = max(shape.key_value_size // tp, shape.head_dim)
        self.columns = self.query + 2 * self.key
        if shape.attention_parameters:  # as many operations as the projections of latent attention
            self.columns = shape.attention_parameters // shape.hidden_size // tp - self.query
        self.inner = shape.intermediate_size // tp
        self.vocabulary = -(-shape.vocab_size // tp)
        self.spread = self.tokens * self.hidden * WIDTH  # bytes of the activations of all ranks

    @property
    def overlapped(self) -> bool:
        """Whether a layer's collectives overlap with its matmuls."""
        return self.layout.overlap != "serial"

    def matmul(self, name: str, m: int, k: int, n: int, groups: int = 1, **fields) -> Operation:
        """``groups`` products of (m, k) and (k, n) in one kernel."""
        moved = groups * (m * k + k * n + m * n) * WIDTH
        shapes = ((groups * m, k), (k, n))
        return Operation(name, "matmul", flops=2.0 * groups * m * k * n, bytes=moved, shapes=shapes, **fields)

    def linear_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        yield self.matmul(f"{name}.input_gradient", m, n, k, phase="backward", **fields)
        yield self.matmul(f"{name}.weight_gradient", k, m, n, phase="backward", **fields)

    def vector(self, name: str, elements: float, cost: tuple[int, ...], **fields) -> Operation:
        """A chain of kernels with a ``cost`` as in TRAFFIC; without the third number nothing is cached."""
        total, kernels, outside = cost if len(cost) == 3 else (*cost, cost[0])
        times = kernels * fields.pop("times", 1)
        moved, cached = elements * total / kernels, elements * (total - outside) / kernels
        return Operation(name, "vector", bytes=moved, cached=cached, times=times, **fields)

    def collective(self, name: str, what: str, backward: bool = False, beside: bool = True) -> Operation:
        """A collective among the tensor-parallel ranks. ``beside``: whether it may overlap with a matmul."""
        overlaps = "matmul" if self.overlapped and beside else ""
        phase = "backward" if backward else "forward"
        return collective(name, what, self.spread, "tp", self.tp, phase, overlaps=overlaps)

    def into_columns(self, name: str) -> Iterator[Operation]:
        if self.tp > 1 and self.layout.sequence_parallel:
            yield self.collective(name, "all_gather")

    def out_of_rows(self, name: str) -> Iterator[Operation]:
        if self.tp > 1:
            yield self.collective(name, "reduce_scatter" if self.layout.sequence_parallel else "all_reduce")

    def out_of_rows_backward(self, name: str) -> Iterator[Operation]:
        if self.tp > 1 and self.layout.sequence_parallel:
            # Without a fused kernel the compute stream waits for the gradient, which both matmuls need.
            yield self.collective(name, "all_gather", True, beside=self.overlapped)

    def into_columns_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        """The matmuls of the layer, and the sum of its input gradient; PaddleNLP's head keeps it whole."""
        yield from self.linear_backward(name, m, k, n, **fields)
        if self.tp > 1:
            scattered = self.layout.sequence_parallel and name != "lm_head"
            yield self.collective(name, "reduce_scatter" if scattered else "all_reduce", True)
