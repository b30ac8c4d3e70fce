"""Which ranks of a run are on which machine, and how these are named."""

from __future__ import annotations

import functools
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Which ranks of the run are on which machine, by the endpoints (address:port) of all ranks.

    ``secret``: of the run; "" if it has none.
    """

    rank: int
    endpoints: list[str]
    secret: str = ""

    @property
    def hub(self) -> tuple[str, int]:
        address, _, port = self.endpoints[0].rpartition(":")
        return address, int(port)

    def address(self, rank: int) -> str:
        return self.endpoints[rank].rpartition(":")[0]

    def may_be(self, rank: int, address: str) -> bool:
        """Whether a connection from ``address`` may be that of ``rank``: a secret proves it better."""
        return bool(self.secret) or _number(self.address(rank)) == address

    def may_enter(self, address: str) -> bool:
        """Whether a connection from ``address`` may be that of any rank."""
        return bool(self.secret) or address in self._numbers

    @functools.cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(_number(self.address(rank)) for rank in range(len(self.endpoints)))

    def on(self, address: str) -> list[int]:
        return [rank for rank in range(len(self.endpoints)) if self.address(rank) == address]

    def describe(self, address: str, host: str) -> str:
        """The machine, as "machine node7 (10.0.0.7, ranks 8 to 15)"."""
        ranks = self.on(address)
        numbers = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"machine {host} ({address}, {numbers})" if host else f"the machine {address} ({numbers})"

    def own_network(self) -> str:
        """Why this machine reaches no other one; "" if its network seems to be there. Nothing is sent."""
        own, why = self.address(self.rank), ""
        for address in dict.fromkeys(map(self.address, range(len(self.endpoints)))):
            if address == own:
                continue
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind((own, 0))
                    probe.connect((address, 9))
                return ""
            except OSError as error:
                why = error.strerror or str(error)
        return why

    def own_loss(self) -> str:
        """The sentence about a machine that has lost its own network; "" if it has not."""
        why = self.own_network()
        me = self.describe(self.address(self.rank), socket.gethostname())
        return f"{me} is lost to the others: it has no network ({why})." if why else ""


@functools.cache
def _number(address: str) -> str:
    """The IPv4 address of a host; itself if it has none."""
    try:
        return socket.gethostbyname(address)
    except (OSError, UnicodeError):
        return address
