"""Token ids in a .bin + .idx pair: the format of Megatron-LM and of PaddleNLP's ``mmap`` datasets.

    .bin    the ids of all sentences, concatenated
    .idx    magic "MMIDIDX\\0\\0", version u64 = 1, dtype u8, sentences n u64, documents + 1 d u64,
            then sizes int32 [n], byte offsets into .bin int64 [n], first sentence of each document int64 [d]

Source: paddlenlp/data/indexed_dataset.py, MMapIndexedDataset. That class trusts the header, so a damaged file
causes a crash or wrong tokens; here the header is first validated against the sizes of both files.
"""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llm_npu.core.atomic import unfinished
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted.git_lfs import refuse_pointer

PARTS = ("training", "validation", "test")  # for all kinds of data
HELD_OUT = ("-valid", "-test")  # suffixes of the training part's prefix
MAGIC = b"MMIDIDX\x00\x00"
MAGIC_LAZY = b"TNTIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
    9: np.uint32,
    10: np.uint64,
}


@dataclass(frozen=True)
class IndexedTokens:
    """The content of a .bin + .idx pair.

    Attributes:
        name: The prefix, for messages.
        tokens: All token ids, memory-mapped.
        ends: The end of each document in ``tokens``, int64 [documents].
    """

    name: str
    tokens: np.ndarray
    ends: np.ndarray


def open_indexed(prefix: Path) -> IndexedTokens:
    """Memory-map ``prefix``.bin and .idx. Raises UserError if a file is missing, damaged or empty."""
    index, binary = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
    for file in (index, binary):
        if not file.is_file():
            raise UserError(f"{file} is missing; tokenized data is a pair of files, .bin and .idx")
        refuse_pointer(file)
    try:
        return _open(prefix, index, binary)
    except OSError as error:
        raise UserError(f"{prefix}.bin and .idx cannot be read: {error.strerror}") from error


def _open(prefix: Path, index: Path, binary: Path) -> IndexedTokens:
    with index.open("rb") as stream:
        header = stream.read(HEADER.size)
    if header.startswith(MAGIC_LAZY):
        raise UserError(
            f"{index} has the old layout 'lazy'; convert the data again with scripts/prepare_data.py"
        )
    if not header.startswith(MAGIC):
        raise UserError(
            f"{index} is damaged or not an index file: it does not start with {MAGIC[:7].decode()}"
        )
    if len(header) < HEADER.size:
        raise UserError(f"{index} is truncated: it ends inside its header")
    _, version, code, sentences, documents = HEADER.unpack(header)
    if version != 1:
        raise UserError(f"{index} has version {version}; only version 1 is supported")
    if code not in DTYPES:
        raise UserError(f"{index} has dtype code {code}; token ids must be integers ({sorted(DTYPES)})")
    expected = HEADER.size + 12 * sentences + 8 * documents
    if index.stat().st_size != expected:
        raise UserError(
            f"{index} is damaged or truncated: its header describes {expected} bytes, but the file has "
            f"{index.stat().st_size}"
        )
    sizes, offsets, firsts = _arrays(index, sentences, documents)
    dtype = np.dtype(DTYPES[code])
    limits = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    if (sizes < 0).any() or not np.array_equal(offsets, limits[:-1] * dtype.itemsize):
        raise UserError(f"{index} is damaged: its offsets are not the cumulative sums of its sizes")
    if not documents or firsts[0] != 0 or firsts[-1] != sentences or (np.diff(firsts) < 0).any():
        raise UserError(f"{index} is damaged: its documents do not cover its {sentences} sentences in order")
    if binary.stat().st_size != limits[-1] * dtype.itemsize:
        raise UserError(
            f"{binary} has {binary.stat().st_size} bytes, but {index.name} describes "
            f"{limits[-1] * dtype.itemsize}: one of them is damaged, truncated or from another pair"
        )
    if not limits[-1]:
        raise UserError(f"{binary} contains no tokens")
    return IndexedTokens(str(prefix), np.memmap(binary, dtype=dtype, mode="r"), limits[firsts[1:]])


def check_ids(tokens: np.ndarray, vocab_size: int) -> None:
    """Raise UserError if an id is outside 0 ... ``vocab_size`` - 1."""
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        wrong = int(tokens.max()) if tokens.max() >= vocab_size else int(tokens.min())
        raise UserError(
            f"the data contain token id {wrong}, but the model's vocabulary has ids 0 to "
            f"{vocab_size - 1}; another tokenizer made them"
        )


def _arrays(index: Path, sentences: int, documents: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with index.open("rb") as stream:
        stream.seek(HEADER.size)
        return tuple(
            np.fromfile(stream, dtype=dtype, count=count)
            for dtype, count in ((np.int32, sentences), (np.int64, sentences), (np.int64, documents))
        )


def write_indexed(
    prefix: Path, documents: Iterable[np.ndarray | Iterable[np.ndarray]], vocab_size: int
) -> None:
    """Write each document (ids, whole or in chunks) as one sentence.

    A token takes 2 bytes if the ids 0 to ``vocab_size`` - 1 fit, else 4. The pair appears complete or not at
    all: .bin is written before .idx, and readers reject a .bin without .idx.

    Raises:
        UserError: There are no documents, or an id is outside the vocabulary.
        OSError: The disk is full or fails.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)
    with unfinished(prefix) as folder:
        part = folder / "part"
        sizes = array.array("q")
        with with_suffix(part, ".bin").open("wb") as stream:
            for document in documents:
                sizes.append(0)
                for ids in [document] if isinstance(document, np.ndarray) else document:
                    check_ids(ids, vocab_size)
                    stream.write(ids.astype(dtype).tobytes())
                    sizes[-1] += len(ids)
        if not sizes:
            raise UserError("there is no text")
        _write_index(with_suffix(part, ".idx"), np.frombuffer(sizes, dtype=np.int64), dtype)
        move_indexed(part, prefix)


def _write_index(file: Path, sizes: np.ndarray, dtype: np.dtype) -> None:
    if sizes.max() > np.iinfo(np.int32).max:
        raise UserError(
            f"a document has {sizes.max():,} tokens; the format allows {np.iinfo(np.int32).max:,}"
        )
    code = next(code for code, known in DTYPES.items() if known == dtype)
    offsets = (np.cumsum(sizes) - sizes) * dtype.itemsize
    with file.open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, 1, code, len(sizes), len(sizes) + 1))
        for numbers in (sizes.astype(np.int32), offsets, np.arange(len(sizes) + 1, dtype=np.int64)):
            stream.write(numbers.tobytes())


def part_names(prefix: Path) -> list[Path]:
    """The prefixes of the training, validation and test split; the first is ``prefix``."""
    return [with_suffix(prefix, suffix) for suffix in ("", *HELD_OUT)]


def parts(prefix: Path) -> list[Path | None]:
    """As `part_names`, with None for a missing validation or test split."""
    train, *held_out = part_names(prefix)
    return [train, *(part if with_suffix(part, ".idx").is_file() else None for part in held_out)]


def is_held_out(prefix: Path, prefixes: list[Path]) -> bool:
    """Whether ``prefix`` is the validation or test split of another pair in ``prefixes``."""
    names = [prefix.name.removesuffix(suffix) for suffix in HELD_OUT]
    return any(name != prefix.name and prefix.parent / name in prefixes for name in names)


def move_indexed(source: Path, prefix: Path) -> None:
    """Move a pair to another prefix in the same file system, replacing an existing pair."""
    index = with_suffix(prefix, ".idx")
    index.unlink(missing_ok=True)  # an old index must never describe a new .bin
    os.replace(with_suffix(source, ".bin"), with_suffix(prefix, ".bin"))
    os.replace(with_suffix(source, ".idx"), index)


def with_suffix(prefix: Path, suffix: str) -> Path:
    """``prefix`` + ``suffix``; unlike Path.with_suffix it keeps everything after a dot in the prefix."""
    return prefix.parent / (prefix.name + suffix)
