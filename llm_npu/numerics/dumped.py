"""Reads the files of --dump_tensors. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.tensor_file import Reader
from llm_npu.core.untrusted import plain_json
from paddle_fused.parity import ROUNDING

FILE, ORDER = "model.safetensors", "order.json"  # FILE equals the name in models.stored
OUTPUT, GRADIENT, WEIGHT = "output", "gradient", "weight gradient"  # prefixes of array names


class Dumped(Mapping[str, np.ndarray]):
    """The recording in a folder; arrays are read on demand. Raises ValueError if there is no recording."""

    def __init__(self, folder: Path):
        try:
            self._order = plain_json.load(folder / ORDER)
        except OSError as error:
            raise UserError(f"{folder / ORDER} cannot be read: {error}") from None
        if not isinstance(self._order, list) or not all(isinstance(name, str) for name in self._order):
            raise UserError(f"{folder / ORDER} must be a list of names")
        self._arrays = Reader([folder / FILE])
        if set(self._order) != set(self._arrays) or len(self._order) != len(self._arrays):
            raise UserError(f"{folder}: {ORDER} and {FILE} do not list the same tensors")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


def dumps(folder: str | Path) -> dict[str, Dumped]:
    """{path below ``folder``: recording} in the order of steps and ranks; "." is ``folder`` itself.

    Raises ValueError if there is no recording.
    """
    root = Path(folder)
    places = [file.parent.relative_to(root) for file in root.rglob(ORDER) if file.is_file()]
    if not places:
        raise UserError(
            f"{folder} contains no dump of --dump_tensors: found no {ORDER} in it or its subfolders"
        )
    return {str(place): Dumped(root / place) for place in sorted(places, key=_number_of_each_part)}


def _number_of_each_part(place: Path) -> list[tuple[int, str]]:
    numbers = [part.rpartition("-")[2] for part in place.parts]
    return [
        (int(number) if number.isdecimal() else -1, part)
        for number, part in zip(numbers, place.parts, strict=True)
    ]


def as_float64(array: np.ndarray) -> np.ndarray:
    """Convert a recorded array of any floating-point dtype to float64."""
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def dtype_of(array: np.ndarray) -> str:
    """Paddle's name for the dtype of a recorded array. Raises UserError for a dtype that no recording has."""
    name = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
    if name not in ROUNDING:
        raise UserError(
            f"The dump contains a tensor of {name}; accepted: {', '.join(ROUNDING)}. Write it again."
        )
    return name
