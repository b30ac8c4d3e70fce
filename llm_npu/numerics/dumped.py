"""Reads the files that --dump_tensors writes. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.tensor_file import Reader
from llm_npu.core.untrusted import plain_json
from paddle_fused.parity import ROUNDING

FILE, ORDER = "model.safetensors", "order.json"  # the first is the name in models.stored
OUTPUT, GRADIENT, WEIGHT = "output", "gradient", "weight gradient"  # prefixes of array names


class Dumped(Mapping[str, np.ndarray]):
    """The recording in a folder; arrays are read on demand. ValueError if there is none."""

    def __init__(self, folder: Path):
        try:
            self._order = plain_json.load(folder / ORDER)
        except OSError as error:
            raise UserError(f"{folder / ORDER} cannot be read: {error}") from None
        if not isinstance(self._order, list) or not all(isinstance(name, str) for name in self._order):
            raise UserError(f"{folder / ORDER} must contain a list of names")
        self._arrays = Reader([folder / FILE])
        if set(self._order) != set(self._arrays) or len(self._order) != len(self._arrays):
            raise UserError(f"{folder}: {ORDER} and {FILE} do not name the same tensors")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


def dumps(folder: str | Path) -> dict[str, Dumped]:
    """{place below ``folder``: recording}, in the order of steps and ranks; "." is ``folder`` itself.

    ValueError if there is none.
    """
    root = Path(folder)
    places = [file.parent.relative_to(root) for file in root.rglob(ORDER) if file.is_file()]
    if not places:
        raise UserError(f"{folder} contains no dump of --dump_tensors: there is no {ORDER} in it or below it")
    return {str(place): Dumped(root / place) for place in sorted(places, key=_number_of_each_part)}


def _number_of_each_part(place: Path) -> list[tuple[int, str]]:
    numbers = [part.rpartition("-")[2] for part in place.parts]
    return [
        (int(number) if number.isdecimal() else -1, part)
        for number, part in zip(numbers, place.parts, strict=True)
    ]


def as_float64(array: np.ndarray) -> np.ndarray:
    """The values of a recorded array, for every floating-point dtype."""
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def dtype_of(array: np.ndarray) -> str:
    """Paddle's name for the dtype of a recorded array. UserError for one that no recording has."""
    name = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
    if name not in ROUNDING:
        raise UserError(f"A tensor of the dump is {name}; dumps have {', '.join(ROUNDING)}. Write it again.")
    return name
