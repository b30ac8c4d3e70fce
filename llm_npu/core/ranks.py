"""Communication between the ranks of a run outside the model: numbers, objects, errors.

    count, number, is_first, mesh    facts of this run; not collective
    table, gathered, wait            collective: every rank calls them at the same place
    Ranks                            ranks that act together: an error on one is an error on all

A single rank does not communicate. Everything is sent as int32: a card would process float64 tensors on its
AICPU, and the bytes of Paddle's ``all_gather_object`` on the host.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import distributed
from paddle.distributed import fleet

from llm_npu.core.errors import UserError


def count() -> int:
    """The number of ranks."""
    return distributed.get_world_size()


def number() -> int:
    """This rank, from 0."""
    return distributed.get_rank()


def is_first() -> bool:
    """Whether this is rank 0, which writes the files and the terminal lines that a run has once."""
    return number() == 0


def table(values: Sequence[float]) -> np.ndarray:
    """The numbers of every rank: float64 [ranks, len(values)]."""
    row = np.asarray(values, dtype=np.float64)
    if count() == 1:
        return row[None]
    return np.stack(_rows(row.view(np.int32))).view(np.float64)


def gathered(value: Any, group=None) -> list:
    """The values of all ranks of ``group`` (default: of the run), in rank order.

    ``value`` is anything that can be pickled.
    """
    if group is None and count() == 1:
        return [value]
    pickled = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = [int(row[0]) for row in _rows(np.array([pickled.size], np.int32), group)]
    words = np.zeros(-(-max(sizes) // 4), np.int32)
    words.view(np.uint8)[: pickled.size] = pickled
    rows = _rows(words, group)
    return [pickle.loads(row.tobytes()[:size]) for row, size in zip(rows, sizes, strict=True)]


def _rows(row: np.ndarray, group=None) -> list[np.ndarray]:
    """The rows of all ranks: int32, of the same length everywhere."""
    rows: list[paddle.Tensor] = []
    distributed.all_gather(rows, paddle.to_tensor(row), group=group)
    return [tensor.numpy() for tensor in rows]


def broadcast(words: np.ndarray, source: int) -> np.ndarray:
    """The ``words`` of the rank ``source``: int32, of the same length on all ranks. Collective."""
    sent = paddle.to_tensor(words)
    distributed.broadcast(sent, src=source)
    return sent.numpy()


def wait() -> None:
    """Barrier: return once all ranks have reached it."""
    if count() > 1:
        distributed.barrier()


class Ranks:
    """``size`` ranks, of which this one is ``rank``; by default a single one."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def of_run(cls) -> Ranks:
        """The ranks of ``paddle.distributed``; a single one before its parallel environment exists."""
        if not distributed.is_initialized():
            return ALONE
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which acts for all."""
        return self.rank == 0

    def share(self, items: list) -> list:
        """This rank's share of ``items``."""
        return items[self.rank :: self.size]

    def gather(self, value: Any) -> list:
        """The values of all ranks, in rank order. Collective."""
        return [value] if self.size == 1 else gathered(value)

    def from_first(self, value: Any) -> Any:
        """The value of rank 0. Collective."""
        return self.gather(value if self.first else None)[0]

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """At the end, raise an error of any rank on all ranks, with its rank. Collective."""
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        if self.size == 1:
            if error is not None:
                raise error
            return
        raise_first(self.gather(described(error)), error)


def mesh() -> dict[str, int]:
    """The number of ranks and the degree of each kind of parallelism; {} for one rank."""
    degrees = {"processes": distributed.get_world_size() if distributed.is_initialized() else 1}
    groups = getattr(fleet.fleet, "_hcg", None)
    if groups is not None:
        degrees |= {
            "data": groups.get_data_parallel_world_size(),
            "tensor": groups.get_model_parallel_world_size(),
            "pipeline": groups.get_pipe_parallel_world_size(),
            "sharding": groups.get_sharding_parallel_world_size(),
        }
    return {name: size for name, size in degrees.items() if size > 1}


def described(error: BaseException | None) -> tuple[type, int | None, str] | None:
    """What another rank needs to raise ``error`` as well: its kind, number and text."""
    if error is None:
        return None
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return OSError, error.errno, f"{file}{error.strerror or error}"
    kind = next((kind for kind in (UserError, ValueError) if isinstance(error, kind)), RuntimeError)
    return kind, None, str(error)


def raise_first(errors: list[tuple | None], own: BaseException | None = None) -> None:
    """Raise the error of the first rank that has one; ``errors`` as ``described``, by rank."""
    for rank, description in enumerate(errors):
        if description is not None:
            kind, number, text = description
            text = f"rank {rank}: {text}" if len(errors) > 1 else text
            raise (kind(number, text) if kind is OSError and number else kind(text)) from own


ALONE = Ranks()
