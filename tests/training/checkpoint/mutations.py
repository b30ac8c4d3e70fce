"""Damaged copies of a file: the same ones for the same content."""

from __future__ import annotations

import random
from collections.abc import Iterator

INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"9", b"-", b"[", b"{", b'"', b",", b"\n", b"e999")


def mutations(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """``count`` copies: bits turned, bytes replaced, parts left out, doubled or moved, ends cut off."""
    draw = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 8))):
            _change(changed, draw)
        yield bytes(changed)


def _change(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data) + 1)
    # headers stand at the beginning, where most of the meaning is
    place = min(place, draw.randrange(256)) if draw.random() < 0.5 else place
    length = draw.choice((1, 2, 4, 8, 64))
    kind = draw.randrange(6)
    if kind == 0 and place < len(data):
        data[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        data[place : place + length] = draw.choice(INTERESTING) * length
    elif kind == 2:
        del data[place : place + length]
    elif kind == 3:
        data[place:place] = data[place : place + length] * draw.choice((1, 2, 100))
    elif kind == 4:
        data[place : place + length] = draw.randbytes(length)
    else:
        del data[max(1, place) :]
