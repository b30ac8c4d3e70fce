"""A matmul with a collective before or after it, and the settings for computing it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_npu.core.errors import UserError

ALL_REDUCE, GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
KINDS = (ALL_REDUCE, GATHER, REDUCE_SCATTER)

SERIAL, PIPELINED, MC2 = "serial", "pipelined", "mc2"
BACKENDS = (SERIAL, PIPELINED, MC2)
MOST_CHUNKS = 64
FEWEST_OF_A_PIECE = 512  # rows
# Rows of a tile of a card's matrix unit. Other row counts are up to twice as slow, also in host libraries.
TILE = 16


@dataclass(frozen=True)
class Product:
    """``left [rows, depth]`` times ``right [depth, columns]`` on each of ``ranks`` processes.

    Kinds:

        all_reduce       sum the results; every rank gets all rows of the sum
        reduce_scatter   sum the results; every rank gets its part of the rows
        all_gather       first concatenate ``left`` from all ranks; ``rows`` counts the rows of one rank

    Attributes:
        kind: the collective.
        concurrent: whether the weight gradient, a matmul of the same size that does not depend on
            communicated data, may be computed during the last communication.
        transposed: whether ``right`` is stored as [columns, depth]. The fused operators then need a
            transposed copy, because Paddle does not pass views to custom operators.
    """

    kind: str
    rows: int
    depth: int
    columns: int
    dtype: str
    ranks: int
    concurrent: bool = False
    transposed: bool = False

    @property
    def parts(self) -> int:
        """The number of rows to split into chunks; of a single rank if rows are gathered or scattered."""
        return self.rows // self.ranks if self.kind == REDUCE_SCATTER else self.rows

    @property
    def sent(self) -> int:
        """Total bytes that each rank sends, in the busier direction of its link."""
        size, others = item_size(self.dtype), self.ranks - 1
        if self.kind == GATHER:
            return others * self.rows * self.depth * size
        scattered = others * self.rows * self.columns * size // self.ranks
        return scattered * (2 if self.kind == ALL_REDUCE else 1)

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.rows}x{self.depth}x{self.columns}"

    def __str__(self) -> str:
        concurrent = " with a weight's gradient" if self.concurrent else ""
        return f"{self.name} {self.dtype} on {self.ranks} ranks{concurrent}"


def in_pieces(chunk: int, part: int) -> bool:
    """Whether to multiply ``chunk`` rows of each rank's ``part`` in place before they are scattered.

    The ranks' rows are then multiplied one after the other. Small chunks are concatenated first, because
    short matmuls are slow.
    """
    return FEWEST_OF_A_PIECE <= chunk < part


def item_size(dtype: str) -> int:
    return {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]


@dataclass(frozen=True)
class Setting:
    """How a matmul is computed: ``serial``, ``mc2`` (which chooses its own chunks), or ``pipelined:4``.

    ``pipelined:1`` does not split the matmul, but overlaps its collective with the weight gradient.
    """

    backend: str
    chunks: int = 1

    def __post_init__(self):
        if self.backend not in BACKENDS:
            accepted = ", ".join(BACKENDS)
            raise UserError(f"overlap: unknown backend {self.backend!r}; accepted: {accepted}")
        most = MOST_CHUNKS if self.backend == PIPELINED else 1
        if not isinstance(self.chunks, int) or not 1 <= self.chunks <= most:
            raise UserError(
                f"overlap: {self.chunks!r} chunks for {self.backend}; accepted: 1 to {MOST_CHUNKS} for "
                "pipelined, for example pipelined:4, and no chunks for the others"
            )

    @classmethod
    def of(cls, text: str | Setting) -> Setting:
        """The setting that ``text`` names: ``serial``, ``mc2`` or ``pipelined:CHUNKS``."""
        if isinstance(text, Setting):
            return text
        match = re.fullmatch(r"([a-z0-9]+)(?::(\d+))?", text) if isinstance(text, str) else None
        if match is None or (match[1] == PIPELINED and match[2] is None):
            raise UserError(
                f"overlap is {text!r}; accepted: auto, serial, mc2, or pipelined with a number of chunks, "
                "for example pipelined:4"
            )
        return cls(match[1], int(match[2] or 1))

    def __str__(self) -> str:
        return f"{self.backend}:{self.chunks}" if self.backend == PIPELINED else self.backend


def spans(rows: int, chunks: int) -> list[tuple[int, int]]:
    """[first, last) of at most ``chunks`` non-empty parts of ``rows`` of nearly equal size.

    Parts start at multiples of ``TILE`` rows, unless a part would be smaller than a tile.
    """
    chunks = max(1, min(rows, chunks))
    tile = TILE if rows >= TILE * chunks else 1
    starts = [round(rows * i / chunks / tile) * tile for i in range(chunks)]
    return list(zip(starts, [*starts[1:], rows], strict=True))
