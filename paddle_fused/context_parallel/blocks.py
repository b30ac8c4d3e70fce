"""The blocks of scores that a rank of ring attention computes, by its queries and the keys of a rank.

Both ranks hold their tokens in zigzag order (``zigzag``), and a block is free of masks except on the
diagonal:

    causal      Later chunks see earlier ones completely. The block of a chunk with itself is causal.
    documents   Only one document can span two different chunks: from the earlier one's end to the later one's
                beginning. This block is a rectangle. The block of a chunk with itself is a list of documents.

Legend: B batch, C tokens of a chunk, n ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from paddle_fused.masks.types import Band, Documents, Mask

from .zigzag import chunks_of


@dataclass(frozen=True)
class Block:
    """Some queries and some keys.

    Attributes:
        rows, queries, keys: slices of the batch, of the own tokens and of the other rank's.
        causal: query i of the block sees its keys up to i, or those of its document.
        documents: the lengths of the documents in the tokens of all rows, concatenated; queries and keys are
            then the same tokens. Empty: the block is one sequence.
    """

    rows: slice
    queries: slice
    keys: slice
    causal: bool = False
    documents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pattern:
    """What a query sees: all keys, the keys up to it, or those of its document.

    Attributes:
        documents: the documents' lengths of each row of the batch, or one row for all; () without documents.
    """

    causal: bool
    documents: tuple[tuple[int, ...], ...] = ()


def pattern_of(mask: Mask | None, length: int, batch: int) -> Pattern | None:
    """The pattern of a mask of the whole sequence, or None if ring attention does not support the mask.

    Raises ValueError if the mask was made for another length or batch.
    """
    pattern = Pattern(False)
    for part in () if mask is None else mask.parts:
        if isinstance(part, Band) and (part.left is None or part.left >= length) and part.right == 0:
            pattern = replace(pattern, causal=True)
        elif isinstance(part, Documents) and not pattern.documents and part.rows == part.key_rows:
            if part.batch_size not in (None, batch):
                raise ValueError(
                    f"{part!r} was made for a batch of {part.batch_size}; the tensors have a batch of "
                    f"{batch}."
                )
            if part.query_start is not None:
                return None
            part.check_lengths(length, length)
            rows = tuple(tuple(size for size in row if size) for row in part.rows)
            pattern = Pattern(pattern.causal or part.causal, rows)
        else:
            return None
    if all(len(row) == 1 for row in pattern.documents):
        return Pattern(pattern.causal)
    return pattern


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call, and the limits of one kernel call.

    Attributes:
        length: the tokens of a rank, two chunks.
        longest_causal: a longer causal block is split, because its mask would be too large.
        has_documents: whether the kernel supports a list of documents.
    """

    batch: int
    length: int
    ranks: int
    longest_causal: int | None
    has_documents: bool

    @property
    def chunk(self) -> int:
        return self.length // 2


@lru_cache(maxsize=256)
def blocks(pattern: Pattern, sizes: Sizes, rank: int, source: int) -> tuple[Block, ...]:
    """The blocks of the queries of ``rank`` and the keys of ``source``.

    Those of ``source == rank`` cover all queries.
    """
    if pattern.documents:
        return tuple(_document_blocks(pattern, sizes, rank, source))
    chunk, rows, tokens = sizes.chunk, slice(0, sizes.batch), slice(0, sizes.length)
    if not pattern.causal:
        return (Block(rows, tokens, tokens),)
    if source == rank:
        return tuple(_causal_blocks(rows, 0, sizes.length, sizes.longest_causal))
    if source > rank:
        return (Block(rows, slice(chunk, sizes.length), tokens),)
    return (Block(rows, tokens, slice(0, chunk)),)


@lru_cache(maxsize=256)
def halves(pattern: Pattern, sizes: Sizes, rank: int) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """The blocks of a rank's own keys in two parts of about equal work.

    The first part can overlap the first transfer of keys, the second the last transfer of gradients.
    """
    chunk, rows, tokens = sizes.chunk, slice(0, sizes.batch), slice(0, sizes.length)
    if pattern.documents:
        split = _document_blocks(pattern, sizes, rank, rank, by_chunk=True)
    elif pattern.causal:
        split = _causal_blocks(rows, 0, sizes.length, min(chunk, sizes.longest_causal or chunk))
    else:
        split = (Block(rows, slice(0, chunk), tokens), Block(rows, slice(chunk, sizes.length), tokens))
    left = sorted(filter(work, split), key=work, reverse=True)
    half, first = sum(map(work, left)) / 2, []
    while left and sum(map(work, first)) < half:
        first.append(left.pop(0))
    return tuple(first), tuple(left)


def work(block: Block) -> float:
    """The number of scores."""
    if block.documents:
        scores = sum(size * size for size in block.documents)
    else:
        scores = math.prod(part.stop - part.start for part in (block.rows, block.queries, block.keys))
    return scores / 2 if block.causal else float(scores)


def _causal_blocks(rows: slice, start: int, stop: int, longest: int | None) -> Iterator[Block]:
    """The causal block of tokens ``start`` to ``stop``: if it is too long, two halves and a rectangle."""
    if longest is None or stop - start <= longest:
        yield Block(rows, slice(start, stop), slice(start, stop), causal=True)
        return
    middle = (start + stop) // 2
    yield from _causal_blocks(rows, start, middle, longest)
    yield from _causal_blocks(rows, middle, stop, longest)
    yield Block(rows, slice(middle, stop), slice(start, middle))


def _document_blocks(
    pattern: Pattern, sizes: Sizes, rank: int, source: int, by_chunk: bool = False
) -> Iterator[Block]:
    """``by_chunk``: the documents of each chunk are a block, instead of those of both chunks."""
    chunk, per_row = sizes.chunk, pattern.documents
    rows = per_row if len(per_row) == sizes.batch else per_row * sizes.batch
    if source == rank:
        own = chunks_of(rank, sizes.ranks)
        lists = [[_lengths_in(row, c * chunk, (c + 1) * chunk) for c in own] for row in rows]
        longest = max(size for row in lists for lengths in row for size in lengths)
        if sizes.has_documents and (sizes.longest_causal is None or longest <= sizes.longest_causal):
            whole = slice(0, sizes.batch)
            for first, last in ((0, 1), (1, 2)) if by_chunk else ((0, 2),):
                tokens = slice(first * chunk, last * chunk)
                documents = (size for row in lists for lengths in row[first:last] for size in lengths)
                yield Block(whole, tokens, tokens, pattern.causal, tuple(documents))
        else:
            yield from _one_by_one(lists, pattern.causal, sizes.longest_causal)
    for b, row in enumerate(rows):
        for a, i in enumerate(chunks_of(rank, sizes.ranks)):
            for other, j in enumerate(chunks_of(source, sizes.ranks)):
                if i == j or (i < j and pattern.causal):
                    continue
                yield from _rectangle(row, slice(b, b + 1), (a, i), (other, j), chunk)


def _one_by_one(lists, causal: bool, longest: int | None) -> Iterator[Block]:
    for b, row in enumerate(lists):
        start = 0
        for size in (size for lengths in row for size in lengths):
            tokens = slice(start, start + size)
            if causal:
                yield from _causal_blocks(slice(b, b + 1), start, start + size, longest)
            else:
                yield Block(slice(b, b + 1), tokens, tokens)
            start += size


def _lengths_in(row: tuple[int, ...], start: int, stop: int) -> list[int]:
    """The lengths of the parts of the documents that lie between two tokens."""
    ends = np.cumsum(row)
    parts = np.minimum(ends, stop) - np.maximum(ends - row, start)
    return [int(size) for size in parts if size > 0]


def _rectangle(row, rows: slice, own, other, chunk: int) -> Iterator[Block]:
    """The block of the document that spans both chunks, if there is one.

    ``own`` and ``other``: the place of a chunk on its rank, and the chunk.
    """
    (a, i), (b, j) = own, other
    ends = np.cumsum(row)
    document = int(np.searchsorted(ends, max(i, j) * chunk, "right"))  # of the later chunk's first token
    start, stop = int(ends[document] - row[document]), int(ends[document])
    parts = []
    for place, c in ((a, i), (b, j)):
        first, last = max(start, c * chunk), min(stop, (c + 1) * chunk)
        if first >= last:
            return
        parts.append(slice(first + (place - c) * chunk, last + (place - c) * chunk))
    yield Block(rows, *parts)
