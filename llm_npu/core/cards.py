"""Cards and the links between them, from data files that give the public source of every figure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """The interconnect of ``cards`` cards, or of any number for None.

    ``topology``: "full_mesh" has a link of ``bandwidth`` per pair of cards, "switch" one per card.
    ``bandwidth``: bytes/s in one direction, of which collectives reach the fraction ``efficiency``.
    ``latency``: seconds per step of a collective. ``oversubscription``: how many times the bandwidth of the
    uplinks of a pod of ``pod`` cards, that of its cards together is; a switch without it has 1.
    """

    name: str
    topology: str
    cards: int | None
    bandwidth: float
    efficiency: float
    latency: float
    oversubscription: float = 1.0
    pod: int = 0

    @property
    def uplink(self) -> Link:
        """The share of the uplinks that a card has if all of its pod send at once."""
        return replace(self, bandwidth=self.bandwidth / self.oversubscription)


@dataclass(frozen=True)
class Card:
    """``peak``: operations/s of 16-bit matrix products. ``memory``: bytes. ``bandwidth``: bytes/s of memory,
    of which kernels that only move data reach the fraction ``memory_efficiency``. ``cache``: bytes of L2,
    which is ``cache_speedup`` times as fast."""

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
        """Bytes/s reached by kernels that only move data."""
        return self.bandwidth * self.memory_efficiency


def oversubscribed(card: Card, ratio: float, pod: int) -> Card:
    """``card`` in a network whose pods of ``pod`` cards have uplinks for 1 / ``ratio`` of their bandwidth."""
    return replace(card, between_servers=replace(card.between_servers, oversubscription=ratio, pod=pod))


def names() -> tuple[str, ...]:
    """The accepted names of cards, short ones first."""
    data = read("cards.json")
    return (*data["aliases"], *(name.removeprefix("ascend") for name in data["cards"]), *data["cards"])


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
def card(name: str) -> Card:
    """The card called ``name``, such as "910b2"; UserError for an unknown name."""
    data = read("cards.json")
    short = name.lower()
    full = data["aliases"].get(short, short)
    full = full if full in data["cards"] else f"ascend{full}"
    if full not in data["cards"]:
        nearest = difflib.get_close_matches(short, names(), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"--card is {name or 'empty'}: give one of {', '.join(names())}{hint}")
    entry = data["cards"][full]
    return Card(
        full,
        entry["tflops"] * TERA,
        entry["memory_gib"] << 30,
        entry["bandwidth_gb_s"] * GIGA,
        data["memory_efficiency"]["value"],
        entry["cache_mib"] << 20,
        data["cache_speedup"]["value"],
        link(entry["within_server"]),
        link(entry["between_servers"]),
        link("pcie"),
    )
