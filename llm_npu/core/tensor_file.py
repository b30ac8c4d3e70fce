"""safetensors files written in place by many ranks at once, each writing its part of each tensor.

    8 bytes    length of the header, little endian
    header     JSON: {"name": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [begin, end]}, ...}
    data       the tensors, row by row

One rank creates the file at its final size; then every rank writes its parts in place. A rank needs memory
for its own parts only, and nothing is sent. The file is written with write calls instead of memory maps: with
a full disk, a write call raises an error, but a memory map raises a signal that kills the process.

Source: https://github.com/huggingface/safetensors (format).
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llm_npu.core.errors import UserError, naming
from llm_npu.core.untrusted import plain_json
from llm_npu.core.untrusted.git_lfs import refuse_pointer
from paddle_fused import strict_json

LARGEST_HEADER = 100_000_000  # bytes, the limit of safetensors

# Paddle's dtype -> safetensors' and numpy's; bfloat16 is uint16, as in Paddle's ``numpy()``.
DTYPES = {
    "float64": ("F64", np.float64),
    "float32": ("F32", np.float32),
    "float16": ("F16", np.float16),
    "bfloat16": ("BF16", np.uint16),
    "int64": ("I64", np.int64),
    "int32": ("I32", np.int32),
    "uint8": ("U8", np.uint8),
    "bool": ("BOOL", np.bool_),
}
_NUMPY = {name: np.dtype(kind) for name, kind in DTYPES.values()}
_NUMPY["U16"] = np.dtype(np.uint16)  # PaddleNLP's bfloat16


class TensorSpec(NamedTuple):
    """The dtype (Paddle's name) and shape of a whole tensor."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype][1]).itemsize


class FileSlot(NamedTuple):
    """The location of a tensor in a file: numpy dtype, shape and the position of the first byte."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def create(file: Path, tensors: Mapping[str, TensorSpec]) -> None:
    """Create ``file`` with the header for ``tensors``, at full size. An OSError names the file."""
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}  # pt is the layout, not the writer
    end = 0
    # wide types first, to align every tensor to its item size
    for name in sorted(tensors, key=lambda name: (-np.dtype(DTYPES[tensors[name].dtype][1]).itemsize, name)):
        whole, begin = tensors[name], end
        end = begin + whole.bytes
        dtype, _ = DTYPES[whole.dtype]
        header[name] = {"dtype": dtype, "shape": list(whole.shape), "data_offsets": [begin, end]}
    text = strict_json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with naming(file), file.open("xb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.flush()
        _reserve(stream.fileno(), 8 + len(text) + end)


def places(file: Path) -> dict[str, FileSlot]:
    """The tensors of ``file``.

    Raises UserError unless header, shapes, positions and file size are consistent. Nothing in the header is
    used before it is verified.
    """
    refuse_pointer(file)
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= min(size - 8, LARGEST_HEADER):
                raise UserError("its header exceeds the file")
            header = plain_json.loads(stream.read(length))
        header.pop("__metadata__", None)
        slots = {name: _place(name, entry, 8 + length) for name, entry in header.items()}
        end = 8 + length
        for name, place in sorted(slots.items(), key=lambda item: (item[1].begin, item[1].bytes)):
            if place.begin != end:
                raise UserError(f"{name} does not begin where the previous tensor ends")
            end += place.bytes
        if end > size:
            raise UserError(f"its tensors need {end} bytes, but the file has {size}")
        return slots
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} cannot be read as safetensors: {error}") from None


def _place(name: str, entry: dict, data: int) -> FileSlot:
    """The slot of a header entry; ``data`` is the position of the first tensor."""
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or len(shape) > 32:
        raise UserError(f"{name} has no shape")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (*shape, begin, end)):
        raise UserError(f"{name} has a shape or a position that is not a whole number of bytes")
    place = FileSlot(_NUMPY[entry["dtype"]], tuple(shape), data + begin)
    if end - begin != place.bytes:
        raise UserError(f"{name} of shape {shape} takes {end - begin} bytes")
    return place


class Writer:
    """Writes parts of tensors to a file made by ``create``. An OSError names the file."""

    def __init__(self, file: Path):
        self._file = file
        with naming(file):
            self._places = places(file)
            self._descriptor = os.open(file, os.O_WRONLY)

    def write(self, name: str, offset: Sequence[int], part: np.ndarray) -> None:
        """Write ``part`` to [offset, offset + part.shape) of the tensor ``name``."""
        place = self._places[name]
        assert place.dtype == part.dtype and part.ndim == len(place.shape), (name, place, part.dtype)
        bytes_of = memoryview(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
        size = place.dtype.itemsize
        with naming(self._file):
            done = 0
            for position, length in _runs(place.shape, offset, part.shape):
                end = done + length * size
                self._put(bytes_of[done:end], place.begin + position * size)
                done = end

    def close(self) -> None:
        """Flush to disk and close."""
        with naming(self._file):
            try:
                os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)

    def _put(self, data: memoryview, position: int) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, position)
            data, position = data[written:], position + written


class Reader(Mapping[str, np.ndarray]):
    """{name: array} of several memory-mapped files; arrays are read on use."""

    def __init__(self, files: Sequence[Path]):
        self._arrays = {}
        for file in files:
            slots = places(file)
            data = np.memmap(file, mode="r")
            for name, place in slots.items():
                end = place.begin + place.bytes
                self._arrays[name] = data[place.begin : end].view(place.dtype).reshape(place.shape)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _runs(shape: Sequence[int], offset: Sequence[int], extent: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(position, length), in elements, of each contiguous run of a part within the whole tensor."""
    if 0 in extent:
        return
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(begin * stride for begin, stride in zip(offset, strides, strict=True))
    last = len(shape) - 1  # the axes behind ``last`` are whole
    while last > 0 and extent[last] == shape[last]:
        last -= 1
    length = math.prod(extent[max(last, 0) :])
    for index in np.ndindex(*extent[: max(last, 0)]):
        yield first + sum(i * stride for i, stride in zip(index, strides, strict=False)), length


def _reserve(descriptor: int, size: int) -> None:
    """Reserve ``size`` bytes, so that a full disk is detected before writing begins."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)  # cannot reserve on this file system: writes fail later
