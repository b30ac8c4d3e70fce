"""Assigns each part of a checkpoint to one rank, evenly, for files of whole tensors.

``WritePlan`` and ``WriteItem`` correspond to SavePlan and WriteItem of torch.distributed.checkpoint.

If each machine has its own disk, each disk stores its ranks' parts in separate files, such as
``optimizer.part-1-of-2.safetensors``. There each part is a tensor whose name contains its box:
``lm_head.weight [0:48, 0:64] of [96, 64]``. ``Assembly`` assembles whole tensors from these files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llm_npu.core.errors import UserError, naming
from llm_npu.core.ranks import Ranks
from llm_npu.core.tensor_file import DTYPES, Reader, TensorSpec, Writer, create, places
from llm_npu.training.checkpoint.disks import Disks
from llm_npu.training.checkpoint.tensors import LocalTensor
from paddle_fused import strict_json

LARGEST = 5 << 30  # bytes of tensors in one file
_DTYPE = {np.dtype(kind): name for name, (_, kind) in DTYPES.items()}
_PART_FILE = re.compile(r"(\w+)\.part-\d+-of-\d+(-\d{5}-of-\d{5})?\.safetensors")
_PIECE = re.compile(r"(.+) \[([\d:, ]*)\] of \[([\d, ]*)\]")

# {name of a part: dtype (Paddle's name) and shape}
Contents = Mapping[str, tuple[str, tuple[int, ...]]]


class WriteItem(NamedTuple):
    """One write of this rank: ``block`` of ``held`` into ``file``."""

    file: str
    held: LocalTensor
    block: object


@dataclass
class WritePlan:
    """The files of this rank's disk, and the parts that this rank writes.

    Attributes:
        files: {file: {name: TensorSpec}}.
        parts: The writes of this rank.
    """

    files: dict[str, dict[str, TensorSpec]]
    parts: list[WriteItem]

    @classmethod
    def of(
        cls, held: Mapping[str, Sequence[LocalTensor]], ranks: Ranks, disks: Disks | None = None
    ) -> WritePlan:
        """Create the plan for {kind: tensors}; file names start with the kind. Collective.

        Args:
            disks: The disks of the output folder; by default all ranks see one folder.

        Raises:
            UserError: The ranks do not have every tensor exactly once, apart from replicas.
        """
        own = {}
        with ranks.raise_on_all_ranks():
            own = {
                (kind, block.name, tensor.dtype, block.shape, block.offset, block.extent): (tensor, block)
                for kind, tensors in held.items()
                for tensor in tensors
                for block in tensor.blocks
            }
        holders: dict[tuple, list[int]] = {}
        for rank, keys in enumerate(ranks.gather(list(own))):
            for key in keys:
                holders.setdefault(key, []).append(rank)
        stored = whole_tensors(holders)
        loads, writers = [0] * ranks.size, {}
        for key in sorted(holders):
            rank = min(holders[key], key=lambda rank: (loads[rank], rank))
            loads[rank] += math.prod(key[-1])
            writers[key] = rank
        names = {key: key[1] for key in writers}
        kinds = {kind: kind for kind in held}
        if disks is not None and disks.several:
            here = [key for key, rank in writers.items() if disks.of_rank[rank] == disks.own]
            names = {key: _piece(key) for key in here}
            stored = {kind: {} for kind in held}
            for key in here:
                stored[key[0]][names[key]] = TensorSpec(key[2], tuple(map(int, key[-1])))
            part = f"part-{disks.all.index(disks.own) + 1}-of-{len(disks.all)}"
            kinds = {kind: f"{kind}.{part}" for kind in held}
        files = {kind: in_files(kinds[kind], stored.get(kind, {})) for kind in held}
        file_of = {
            (kind, name): file for kind in held for file, specs in files[kind].items() for name in specs
        }
        parts = []
        for key in (key for key, rank in writers.items() if rank == ranks.rank):
            tensor, block = own[key]
            if names[key] != block.name:
                block = block._replace(name=names[key], offset=(0,) * len(block.offset))
            parts.append(WriteItem(file_of[key[0], names[key]], tensor, block))
        return cls({file: specs for kind in held for file, specs in files[kind].items()}, parts)

    def content(self) -> Iterator[tuple[str, object, np.ndarray]]:
        """(file, block, values) of this rank's parts. Every tensor is copied to the host once."""
        held, array = None, None
        for part in sorted(self.parts, key=lambda part: (part.file, id(part.held))):
            if part.held is not held:
                held, array = part.held, part.held.array()
            yield part.file, part.block, part.block.of(array)


def whole_tensors(holders: Mapping[tuple, list[int]]) -> dict[str, dict[str, TensorSpec]]:
    """{kind: {name: TensorSpec}} of all tensors of the ranks. Raises UserError for gaps and overlaps."""
    specs: dict[str, dict[str, TensorSpec]] = {}
    boxes: dict[tuple[str, str], list[tuple]] = {}
    for kind, name, dtype, shape, offset, extent in holders:
        whole = specs.setdefault(kind, {}).setdefault(name, TensorSpec(dtype, shape))
        if whole != TensorSpec(dtype, shape):
            raise UserError(f"{name} is {TensorSpec(dtype, shape)} on one rank and {whole} on another")
        boxes.setdefault((kind, name), []).append((offset, extent))
    for (kind, name), parts in boxes.items():
        shape = specs[kind][name].shape
        elements = sum(math.prod(extent) for _, extent in parts)
        if elements != math.prod(shape):
            raise UserError(
                f"the ranks' shards of {name}, of shape {list(shape)}, hold {elements} elements instead of "
                f"{math.prod(shape)}; it cannot be stored"
            )
        if pair := _overlapping(parts):
            first, second = sorted(pair)
            raise UserError(
                f"{name} of shape {list(shape)} cannot be stored, because the processes' parts "
                f"{_range(*first)} and {_range(*second)} overlap"
            )
    return specs


def _overlapping(parts: list[tuple]) -> tuple[tuple, tuple] | None:
    """Two boxes (offset, extent) that share an element, or None.

    A fused projection split by elements has a thousand parts, so only neighbors are compared, along the
    dimension with the most distinct offsets.
    """
    dims = len(parts[0][0])
    if dims == 0:
        return tuple(parts[:2]) if len(parts) > 1 else None
    axis = max(range(dims), key=lambda dim: len({offset[dim] for offset, _ in parts}))
    near: list[tuple] = []
    for part in sorted(parts, key=lambda part: part[0][axis]):
        near = [(offset, extent) for offset, extent in near if offset[axis] + extent[axis] > part[0][axis]]
        for other in near:
            if _overlap(part, other):
                return part, other
        near.append(part)
    return None


def _overlap(first: tuple, second: tuple) -> bool:
    """Whether two boxes (offset, extent) of one tensor share an element."""
    return all(max(a, b) < min(a + m, b + n) for a, m, b, n in zip(*first, *second, strict=True))


def _range(offset: Sequence[int], extent: Sequence[int]) -> str:
    """(0, 2), (3, 4) -> "[0:3, 2:6]"."""
    return f"[{', '.join(f'{begin}:{begin + size}' for begin, size in zip(offset, extent, strict=True))}]"


def in_files(kind: str, tensors: Mapping[str, TensorSpec]) -> dict[str, dict[str, TensorSpec]]:
    """{file: {name: TensorSpec}}, in one or more files of at most ``LARGEST`` bytes."""
    groups: list[dict[str, TensorSpec]] = [{}]
    size = 0
    for name in sorted(tensors):
        size += tensors[name].bytes
        if size > LARGEST and groups[-1]:
            groups.append({})
            size = tensors[name].bytes
        groups[-1][name] = tensors[name]
    if len(groups) == 1:
        return {f"{kind}.safetensors": groups[0]}
    return {
        f"{kind}-{number:05}-of-{len(groups):05}.safetensors": group
        for number, group in enumerate(groups, start=1)
    }


def create_files(folder: Path, files: Mapping[str, Mapping[str, TensorSpec]], kinds: Iterable[str]) -> None:
    """Create ``files`` at full size, and an index for each of the ``kinds`` with several files."""
    for file, tensors in files.items():
        create(folder / file, tensors)
    for kind in kinds:
        of_kind = {file: files[file] for file in files if file.startswith(f"{kind}-")}
        if of_kind:
            index = folder / f"{kind}.safetensors.index.json"
            with naming(index):
                index.write_text(_index_of(of_kind))


def kind_of_part(file: str) -> str | None:
    """The kind of tensors in a part file; None for other files."""
    match = _PART_FILE.fullmatch(file)
    return match and match[1]


def _piece(key: tuple) -> str:
    """The name of a part in a part file."""
    _, name, _, shape, offset, extent = key
    return f"{name} {_range(offset, extent)} of {list(map(int, shape))}"


def read_piece(name: str) -> tuple[str, tuple, tuple, tuple]:
    """Parse a part's name to (name, shape, offset, extent). Raises UserError for other names."""
    if match := _PIECE.fullmatch(name):
        shape = tuple(int(word) for word in match[3].split(", ") if word)
        ranges = [word.split(":") for word in match[2].split(", ") if word]
        boxes = [(int(limits[0]), int(limits[1])) for limits in ranges if len(limits) == 2 and all(limits)]
        fits = len(boxes) == len(ranges) == len(shape)
        if fits and all(begin <= end <= size for (begin, end), size in zip(boxes, shape, strict=True)):
            return match[1], shape, tuple(b for b, _ in boxes), tuple(e - b for b, e in boxes)
    raise UserError(f"{name!r:.80} is not a part of a tensor")


def _index_of(files: Mapping[str, Mapping[str, TensorSpec]]) -> str:
    """The index of several files of one kind, in Hugging Face's format."""
    size = sum(whole.bytes for tensors in files.values() for whole in tensors.values())
    file_of = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {"total_size": size}, "weight_map": file_of}
    return strict_json.dumps(index, indent=2, sort_keys=True) + "\n"


def contents(file: Path) -> Contents:
    """The contents of a part file. Raises UserError if it cannot be read."""
    return {name: (_DTYPE[slot.dtype], slot.shape) for name, slot in places(file).items()}


class Assembly:
    """Files of whole tensors in ``folder``, created here and filled from one part file after another.

    The files are byte for byte identical to those written on a shared disk. Leaving the context closes the
    files.

    Args:
        part_files: {part file: contents}.

    Raises:
        UserError: The parts do not cover every tensor exactly once.
    """

    def __init__(self, folder: Path, part_files: Mapping[str, Contents]):
        held = {}
        for file, tensors in part_files.items():
            for piece, (dtype, extent) in tensors.items():
                name, shape, offset, box = read_piece(piece)
                if box != extent:
                    raise UserError(f"{file}: {piece} has the shape {list(extent)}")
                held[kind_of_part(file), name, dtype, shape, offset, extent] = [0]
        kinds, whole = {kind_of_part(file) for file in part_files}, whole_tensors(held)
        files = {kind: in_files(kind, whole.get(kind, {})) for kind in sorted(kinds)}
        create_files(folder, {file: specs for kind in files for file, specs in files[kind].items()}, files)
        self._file_of = {
            (kind, name): file for kind in files for file, specs in files[kind].items() for name in specs
        }
        self._folder, self._stack, self._writers = folder, ExitStack(), {}

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """Flush the files."""
        self._stack.close()

    def add(self, name: str, file: Path) -> None:
        """Write the parts in ``file``, a copy of the part file ``name``."""
        for piece, array in Reader([file]).items():
            whole, _, offset, _ = read_piece(piece)
            self._writer(self._file_of[kind_of_part(name), whole]).write(whole, offset, array)

    def _writer(self, file: str) -> Writer:
        if file not in self._writers:
            self._writers[file] = Writer(self._folder / file)
            self._stack.callback(self._writers[file].close)
        return self._writers[file]
