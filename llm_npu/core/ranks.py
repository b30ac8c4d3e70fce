"""Communication between ranks outside the model: numbers, objects and errors.

    count, number, is_first, mesh    facts of this run; not collective
    table, gathered, wait, communicators
                                     collective: all ranks must call them in the same order
    Ranks                            a group of ranks; an error on one rank is raised on all

A single rank does not communicate. All data is sent as int32: a card would process float64 tensors on its
AICPU, and Paddle's ``all_gather_object`` sends bytes through the host.
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
    """The index of this rank, starting at 0."""
    return distributed.get_rank()


def communicators(groups: Sequence[Sequence[int]]) -> list:
    """This rank's groups of ``paddle.distributed`` among ``groups``. Collective over all ranks.

    A group's communicator is set up by its first call, which is made here, in the same order on all ranks.
    """
    created = [distributed.new_group(list(ranks)) for ranks in groups]
    own = [group for group, ranks in zip(created, groups, strict=True) if number() in ranks]
    for group in own:
        distributed.barrier(group)
    return own


def is_first() -> bool:
    """Whether this is rank 0, which writes files and terminal output once per run."""
    return number() == 0


def table(values: Sequence[float]) -> np.ndarray:
    """Gather ``values`` from every rank: float64 [ranks, len(values)]."""
    row = np.asarray(values, dtype=np.float64)
    if count() == 1:
        return row[None]
    return np.stack(_rows(row.view(np.int32))).view(np.float64)


def gathered(value: Any, group=None) -> list:
    """Gather ``value``, any picklable object, from all ranks of ``group`` in rank order.

    The default group is the whole run.
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
    """Gather the rows of all ranks: int32, with the same length on every rank."""
    rows: list[paddle.Tensor] = []
    distributed.all_gather(rows, paddle.to_tensor(row), group=group)
    return [tensor.numpy() for tensor in rows]


def broadcast(words: np.ndarray, source: int) -> np.ndarray:
    """Broadcast ``words`` from rank ``source``: int32, with the same length on all ranks. Collective."""
    sent = paddle.to_tensor(words)
    distributed.broadcast(sent, src=source)
    return sent.numpy()


def wait() -> None:
    """Barrier: return once all ranks have reached it."""
    if count() > 1:
        distributed.barrier()


class Ranks:
    """A group of ``size`` ranks in which this process is ``rank``; by default a single rank."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def of_run(cls) -> Ranks:
        """The ranks of ``paddle.distributed``; a single rank before its environment is initialized."""
        if not distributed.is_initialized():
            return ALONE
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def share(self, items: list) -> list:
        """This rank's share of ``items``."""
        return items[self.rank :: self.size]

    def gather(self, value: Any) -> list:
        """Gather the values of all ranks in rank order. Collective."""
        return [value] if self.size == 1 else gathered(value)

    def from_first(self, value: Any) -> Any:
        """Broadcast the value of rank 0. Collective."""
        return self.gather(value if self.first else None)[0]

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """On exit, raise the first rank's error on all ranks, prefixed with its rank. Collective."""
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
    """The number of ranks and the degree of each kind of parallelism; {} for a single rank."""
    degrees = {"processes": distributed.get_world_size() if distributed.is_initialized() else 1}
    groups = getattr(fleet.fleet, "_hcg", None)
    if groups is not None:
        degrees |= {
            "data": groups.get_data_parallel_world_size(),
            "tensor": groups.get_model_parallel_world_size(),
            "pipeline": groups.get_pipe_parallel_world_size(),
            "sharding": groups.get_sharding_parallel_world_size(),
            "sequence": groups.get_sep_parallel_world_size(),
        }
    return {name: size for name, size in degrees.items() if size > 1}


def described(error: BaseException | None) -> tuple[type, int | None, str] | None:
    """The type, errno and text of ``error``, so that another rank can raise it too."""
    if error is None:
        return None
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return OSError, error.errno, f"{file}{error.strerror or error}"
    kind = next((kind for kind in (UserError, ValueError) if isinstance(error, kind)), RuntimeError)
    return kind, None, str(error)


def raise_first(errors: list[tuple | None], own: BaseException | None = None) -> None:
    """Raise the error of the first failed rank; ``errors`` has ``described(error)`` for each rank."""
    for rank, description in enumerate(errors):
        if description is not None:
            kind, number, text = description
            text = f"rank {rank}: {text}" if len(errors) > 1 else text
            raise (kind(number, text) if kind is OSError and number else kind(text)) from own


ALONE = Ranks()
