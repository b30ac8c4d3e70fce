"""The sizes of a batch's images on the host, and indices computed from them.

A model receives them as a tensor ``image_grid_thw`` [images, 3] with frames, rows and columns in patches. On
the device, index arithmetic would run kernels that a card lacks, and wait for each size that the host needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
import paddle

_held: ContextVar[tuple[paddle.Tensor, np.ndarray] | None] = ContextVar("grids of the batch", default=None)


@contextlib.contextmanager
def read_once(image_grid_thw: paddle.Tensor) -> Iterator[np.ndarray]:
    """Read the sizes; inside the context, ``on_host`` does not read them again."""
    grids = image_grid_thw.numpy()
    token = _held.set((image_grid_thw, grids))
    try:
        yield grids
    finally:
        _held.reset(token)


def on_host(image_grid_thw: paddle.Tensor) -> np.ndarray:
    """The sizes as an array [images, 3]."""
    held = _held.get()
    return held[1] if held is not None and held[0] is image_grid_thw else image_grid_thw.numpy()


def rows_and_columns(grids: np.ndarray) -> np.ndarray:
    """[patches, 2]: the row and column of each patch, frame by frame."""
    places = [np.indices(size).reshape([3, -1])[1:].T for size in grids]
    return np.concatenate(places)


def blocks(grids: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[patches]: the indices of the patches, ordered by blocks of ``rows`` x ``columns`` patches."""
    order, start = [], 0
    for frames, height, width in grids.tolist():
        indices = np.arange(start, start + frames * height * width)
        shape = [frames, height // rows, rows, width // columns, columns]
        order.append(indices.reshape(shape).transpose([0, 1, 3, 2, 4]).ravel())
        start += indices.size
    return np.concatenate(order)
