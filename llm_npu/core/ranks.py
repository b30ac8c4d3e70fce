"""What the processes of a run tell each other outside of the model: numbers, errors, whether to go on.

    count, number, is_first, mesh    of this run; not collective
    table, gathered, wait            every process calls them at the same place, and gets the same answer
    Ranks                            processes that do something together: an error of one is an error of all

With one process all of them answer without communication. What is sent is int32, whatever it means: a card
would handle doubles in its AICPU, and the bytes of Paddle's ``all_gather_object`` on the host.
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
    """How many processes there are."""
    return distributed.get_world_size()


def number() -> int:
    """Which of them this is, from 0."""
    return distributed.get_rank()


def is_first() -> bool:
    """Whether this is the process that writes what there is one of: files, and lines on the terminal."""
    return number() == 0


def table(values: Sequence[float]) -> np.ndarray:
    """The numbers of every process: float64 [processes, len(values)]."""
    row = np.asarray(values, dtype=np.float64)
    if count() == 1:
        return row[None]
    return np.stack(_rows(row.view(np.int32))).view(np.float64)


def gathered(value: Any, group=None) -> list:
    """The values of all processes of ``group`` (by default: of the run), in the order of their ranks.

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
    """The rows of all processes, int32 and as long as this one's."""
    rows: list[paddle.Tensor] = []
    distributed.all_gather(rows, paddle.to_tensor(row), group=group)
    return [each.numpy() for each in rows]


def wait() -> None:
    """Until all processes are here."""
    if count() > 1:
        distributed.barrier()


class Ranks:
    """``size`` processes, of which this one is ``rank``. One process alone by default."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def of_run(cls) -> Ranks:
        """Those of ``paddle.distributed``, once its parallel environment is there."""
        if not distributed.is_initialized():
            return ALONE
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the process that does what one process does for all."""
        return self.rank == 0

    def share(self, items: list) -> list:
        """The items that are this process's to work on."""
        return items[self.rank :: self.size]

    def gather(self, value: Any) -> list:
        """The values of all processes, in the order of their ranks; each must call it."""
        return [value] if self.size == 1 else gathered(value)

    def from_first(self, value: Any) -> Any:
        """The value that the first process has."""
        return self.gather(value if self.first else None)[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What one process raises inside, all raise at the end, naming its rank. Each must enter."""
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
    """How many processes this run has, and over how many it splits what; {} for one process."""
    found = {"processes": distributed.get_world_size() if distributed.is_initialized() else 1}
    groups = getattr(fleet.fleet, "_hcg", None)
    if groups is not None:
        found |= {
            "data": groups.get_data_parallel_world_size(),
            "tensor": groups.get_model_parallel_world_size(),
            "pipeline": groups.get_pipe_parallel_world_size(),
            "sharding": groups.get_sharding_parallel_world_size(),
        }
    return {name: size for name, size in found.items() if size > 1}


def described(error: BaseException | None) -> tuple[type, int | None, str] | None:
    """What another process needs to raise ``error`` too: its kind, its number and its text."""
    if error is None:
        return None
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return OSError, error.errno, f"{file}{error.strerror or error}"
    kind = next((kind for kind in (UserError, ValueError) if isinstance(error, kind)), RuntimeError)
    return kind, None, str(error)


def raise_first(errors: list[tuple | None], own: BaseException | None = None) -> None:
    """Raise the error of the first process that has one; ``errors`` as ``described``, by rank."""
    for rank, found in enumerate(errors):
        if found is not None:
            kind, number, text = found
            text = f"rank {rank}: {text}" if len(errors) > 1 else text
            raise (kind(number, text) if kind is OSError and number else kind(text)) from own


ALONE = Ranks()
