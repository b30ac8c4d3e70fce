"""The arrays of a cache folder, memory-mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError


def mapped(
    folder: Path, kinds: Mapping[str, tuple[type, int]], consistent: Callable[..., bool]
) -> list[np.ndarray]:
    """The arrays ``name``.npy of ``kinds``, {name: (dtype, dimensions)}, in this order.

    A cache may be shared, or truncated by a full disk: ValueError if an array is missing or of another kind,
    and if ``consistent(*arrays)`` is false.
    """
    try:
        arrays = [np.lib.format.open_memmap(folder / f"{name}.npy", mode="r") for name in kinds]
        if [(array.dtype, array.ndim) for array in arrays] != [*kinds.values()]:
            raise UserError("they have other dtypes")
        if not consistent(*arrays):
            raise UserError("their sizes do not match")
    except Exception as error:  # numpy evaluates the header as Python and passes on whatever that raises
        raise UserError(
            f"the arrays in {folder} are damaged ({error}); delete the folder to rebuild it"
        ) from None
    return arrays
