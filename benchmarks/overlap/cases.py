"""The measured cases.

Sizes: ``rows`` of the matmul (all rows that one rank multiplies), ``depth`` and ``columns`` of the weight.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.work import ITEM_SIZE

RANKS = 2
FORWARD, BACKWARD, FROZEN = "forward", "backward", "backward, frozen"
WAYS = {  # operator: its communication by direction
    "matmul_all_reduce": (FORWARD,),
    "replicated_matmul": (BACKWARD, FROZEN),
    "all_gather_matmul": (FORWARD, BACKWARD, FROZEN),
    "matmul_reduce_scatter": (FORWARD, BACKWARD),
}
BLOCKS = ("tensor parallel block", "sequence parallel block")
RING = "ring_attention"  # rows: tokens of a rank; depth: head size; columns: heads
EXPERTS = "expert_parallel"  # rows: tokens of a rank; depth, columns: both sizes of an expert
STEP = "step"


@dataclass(frozen=True)
class Case:
    """``operator`` in one ``way``, or the two linear layers of a ``BLOCKS`` in a whole step."""

    operator: str
    way: str
    dtype: str
    rows: int
    depth: int
    columns: int

    @property
    def kind(self) -> str:
        """The kind of collective, in the planner's terms."""
        forward = self.way == FORWARD
        return {
            "matmul_all_reduce": "all_reduce",
            "replicated_matmul": "all_reduce",
            "all_gather_matmul": "all_gather" if forward else "reduce_scatter",
            "matmul_reduce_scatter": "reduce_scatter" if forward else "all_gather",
        }.get(self.operator, "all_reduce")

    @property
    def width_sent(self) -> int:
        """The width of the communicated rows, which are rows of the input or of the output."""
        comes_in = self.kind == "all_gather"
        return self.depth if comes_in == (self.way == FORWARD) else self.columns

    @property
    def sent(self) -> int:
        """Bytes that a rank sends; an all_reduce counts both directions."""
        once = self.rows * self.width_sent * ITEM_SIZE[self.dtype] * (RANKS - 1) // RANKS
        return once * (2 if self.kind == "all_reduce" else 1)

    @property
    def label(self) -> str:
        return f"{self.rows}x{self.depth}x{self.columns}"

    def to_dict(self) -> dict:
        return asdict(self)


def link_speed(sent: int, compute: float, ratio: float) -> float | None:
    """GB/s at which ``sent`` bytes take ``ratio`` times as long as ``compute``; None for no limit."""
    return None if ratio == 0 else sent / (ratio * compute) / 1e9


def rows_for(seconds: float, of_some_rows: float, rows: int) -> int:
    """Rows, a multiple of 64, whose matmul takes ``seconds``, if ``rows`` take ``of_some_rows`` seconds."""
    return max(64, round(rows * seconds / of_some_rows / 64) * 64)
