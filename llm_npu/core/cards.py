"""Cards and the links between them, read from data files that cite a public source for every figure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llm_npu.core.errors import UserError

DATA = Path(__file__).parent / "data"
GIGA, TERA = 1e9, 1e12


@cache
def read(name: str, folder: Path = DATA) -> dict:
    """The contents of the data file ``name``."""
    return json.loads((folder / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Link:
    """An interconnect.

    Attributes:
        topology: "full_mesh" (a link of ``bandwidth`` for each pair of cards) or "switch" (one per card).
        cards: Number of connected cards; None for any number.
        bandwidth: Bytes/s in one direction.
        efficiency: Fraction of ``bandwidth`` that collectives reach.
        latency: Seconds per step of a collective.
    """

    name: str
    topology: str
    cards: int | None
    bandwidth: float
    efficiency: float
    latency: float


@dataclass(frozen=True)
class Card:
    """A card's specification.

    Attributes:
        peak: FLOP/s of matrix products, in the dtype that ``card`` was called with.
        memory: Bytes of device memory.
        bandwidth: Bytes/s of device memory.
        memory_efficiency: Fraction of ``bandwidth`` that kernels without arithmetic reach.
        cache: Bytes of L2 cache.
        cache_speedup: Bandwidth of the L2 cache divided by ``bandwidth``.
    """

    name: str
    peak: float
    memory: int
    bandwidth: float
    memory_efficiency: float
    cache: int
    cache_speedup: float
    within_server: Link
    between_servers: Link
    to_host: Link

    @property
    def sustained_bandwidth(self) -> float:
        """Bytes/s that memory-bound kernels reach."""
        return self.bandwidth * self.memory_efficiency


def names() -> tuple[str, ...]:
    """The accepted card names, short ones first."""
    data = read("cards.json")
    return (*data["aliases"], *(name.removeprefix("ascend") for name in data["cards"]), *data["cards"])


def peak_tflops(entry: Mapping, dtype: str) -> float:
    """The peak of a row of cards.json; float16 and bfloat16 may differ."""
    return entry.get("fp16_tflops", entry["tflops"]) if dtype == "float16" else entry["tflops"]


def link(name: str) -> Link:
    entry: Mapping = read("links.json")["links"][name]
    return Link(
        name,
        entry["topology"],
        entry["cards"],
        entry["bandwidth_gb_s"] * GIGA,
        entry["efficiency"],
        entry["latency_s"],
    )


@cache
def card(name: str, dtype: str = "bfloat16") -> Card:
    """The card ``name``, such as "910b2", with its peak in ``dtype``.

    Raises:
        UserError: The name is unknown, or the planner does not support the card.
    """
    data = read("cards.json")
    short = name.lower()
    full = data["aliases"].get(short, short)
    full = full if full in data["cards"] else f"ascend{full}"
    reason = data["unsupported"].get(full)
    if reason is not None:
        raise UserError(f"--card is {name}: {reason}; accepted: {', '.join(names())}")
    if full not in data["cards"]:
        nearest = difflib.get_close_matches(short, names(), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"--card is {name or 'empty'}; accepted: {', '.join(names())}{hint}")
    entry = data["cards"][full]
    return Card(
        full,
        peak_tflops(entry, dtype) * TERA,
        entry["memory_gib"] << 30,
        entry["bandwidth_gb_s"] * GIGA,
        data["memory_efficiency"]["value"],
        entry["cache_mib"] << 20,
        data["cache_speedup"]["value"],
        link(entry["within_server"]),
        link(entry["between_servers"]),
        link("pcie"),
    )
