"""The protocol between coordinator and workers: rank layout, messages and handshake.

Messages are lines of JSON; an empty line is a heartbeat. Before a rank counts as alive, coordinator and
worker prove to each other that they know the run's secret:

    worker -> coordinator    hello (rank, nonce)
    coordinator -> worker    hello (host, nonce, proof)
    worker -> coordinator    proof (host, proof)
    coordinator -> worker    welcome

A proof is an HMAC of both nonces and all rank endpoints; the secret itself is never sent. Without a
secret the proof only shows that both sides have the same endpoints, and the coordinator also
compares the worker's address with that of its rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import re
import secrets
import socket
from dataclasses import dataclass
from typing import NamedTuple

from . import MAX_TEXT

_NONCE = re.compile(r"[0-9a-f]{32}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,64}")
BAD_SECRET = "its LLM_NPU_RUN_SECRET or its list of rank endpoints differs"


@dataclass(frozen=True)
class Layout:
    """Which rank of the run is on which machine.

    Attributes:
        rank: this process's rank.
        endpoints: address:port of every rank.
        secret: the run's secret, "" for none.
    """

    rank: int
    endpoints: list[str]
    secret: str = ""

    @property
    def coordinator(self) -> tuple[str, int]:
        address, _, port = self.endpoints[0].rpartition(":")
        return address, int(port)

    def address(self, rank: int) -> str:
        return self.endpoints[rank].rpartition(":")[0]

    def may_be(self, rank: int, address: str) -> bool:
        """Whether ``rank`` may connect from ``address``; with a secret, the proof decides."""
        return bool(self.secret) or _ipv4(self.address(rank)) == address

    def may_connect(self, address: str) -> bool:
        """Whether any rank may connect from ``address``."""
        return bool(self.secret) or address in self._ipv4_addresses

    @functools.cached_property
    def _ipv4_addresses(self) -> frozenset[str]:
        return frozenset(_ipv4(self.address(rank)) for rank in range(len(self.endpoints)))

    def on(self, address: str) -> list[int]:
        return [rank for rank in range(len(self.endpoints)) if self.address(rank) == address]

    def describe(self, address: str, host: str) -> str:
        """The machine, as "machine node7 (10.0.0.7, ranks 8 to 15)"."""
        ranks = self.on(address)
        numbers = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"machine {host} ({address}, {numbers})" if host else f"the machine {address} ({numbers})"

    def own_network_error(self) -> str:
        """Why this machine has no route to any other machine; "" if it has one. Nothing is sent."""
        own, reason = self.address(self.rank), ""
        for address in dict.fromkeys(map(self.address, range(len(self.endpoints)))):
            if address == own:
                continue
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind((own, 0))
                    probe.connect((address, 9))
                return ""
            except OSError as error:
                reason = error.strerror or str(error)
        return reason

    def own_loss(self) -> str:
        """The message about a machine whose own network is down; "" if it is up."""
        reason = self.own_network_error()
        own = self.describe(self.address(self.rank), socket.gethostname())
        return f"{own} is cut off from the other machines: its network is down ({reason})." if reason else ""


@functools.cache
def _ipv4(address: str) -> str:
    """The IPv4 address of a host; ``address`` itself if it has none."""
    try:
        return socket.gethostbyname(address)
    except (OSError, UnicodeError):
        return address


async def send(writer: asyncio.StreamWriter, **message) -> None:
    """Send one line, a heartbeat without a message. The reader of the same connection handles errors."""
    with contextlib.suppress(OSError):
        writer.write((json.dumps(message) if message else "").encode() + b"\n")
        await writer.drain()


async def receive(reader: asyncio.StreamReader) -> dict | None:
    """The next message, {} for a heartbeat; None at the end of the connection and for an invalid line.

    ``reader`` has the limit ``MAX_LINE``; a longer line is invalid.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        line = await reader.readline()
        if line.endswith(b"\n"):
            message = json.loads(line) if line.strip() else {}
            return message if isinstance(message, dict) else None
    return None


def printable(value: object, max_length: int = MAX_TEXT) -> str:
    """Text from another machine as one line without control characters; long text is truncated to its end."""
    text = " ".join(str(value).split()) if isinstance(value, str) else ""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= max_length else f"... {text[-max_length:]}"


class Verdict(NamedTuple):
    """Why all ranks have to exit, and with which code."""

    message: str
    exit_code: int


class SecretMismatch(Exception):
    """The other side has a different secret or different endpoints."""

    def __init__(self, rank: int = 0):
        self.rank = rank


class ConnectionRejected(Exception):
    """The other side has closed the connection, or is not a rank of this project."""


class AdmittedRank(NamedTuple):
    """A rank that has proved its identity to the coordinator, and the name of its machine."""

    rank: int
    host: str


async def join(layout: Layout, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """The worker's side of the handshake; returns the name of the coordinator's machine.

    Raises SecretMismatch and ConnectionRejected.
    """
    own_nonce = secrets.token_hex(16)
    await send(writer, kind="hello", rank=layout.rank, nonce=own_nonce)
    answer = await _expect(reader, "hello")
    nonces = own_nonce, _nonce(answer)
    own_proof = _proof(layout, "worker", layout.rank, *nonces)
    await send(writer, kind="proof", host=socket.gethostname(), proof=own_proof)
    if not _has_proof(answer, _proof(layout, "coordinator", layout.rank, *nonces)):
        raise SecretMismatch
    await _expect(reader, "welcome")
    return _host(answer)


async def admit(layout: Layout, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AdmittedRank:
    """The coordinator's side up to the proof; the caller sends the welcome.

    Raises SecretMismatch and ConnectionRejected.
    """
    hello, own_nonce = await _expect(reader, "hello"), secrets.token_hex(16)
    rank, nonces = hello.get("rank"), (_nonce(hello), own_nonce)
    address = writer.get_extra_info("peername")[0]
    if type(rank) is not int or not 0 <= rank < len(layout.endpoints) or not layout.may_be(rank, address):
        raise ConnectionRejected
    own_proof = _proof(layout, "coordinator", rank, *nonces)
    await send(writer, kind="hello", host=socket.gethostname(), nonce=own_nonce, proof=own_proof)
    answer = await _expect(reader, "proof")
    if not _has_proof(answer, _proof(layout, "worker", rank, *nonces)):
        raise SecretMismatch(rank)
    return AdmittedRank(rank, _host(answer))


def _proof(layout: Layout, side: str, rank: int, *nonces: str) -> str:
    text = "\n".join([side, str(rank), *nonces, *layout.endpoints])
    return hmac.new(layout.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _has_proof(message: dict, proof: str) -> bool:
    received = message.get("proof")
    return isinstance(received, str) and hmac.compare_digest(
        received.encode(errors="replace"), proof.encode()
    )


async def _expect(reader: asyncio.StreamReader, kind: str) -> dict:
    message = await receive(reader)
    if not message or message.get("kind") != kind:
        raise ConnectionRejected
    return message


def _nonce(message: dict) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ConnectionRejected
    return nonce


def _host(message: dict) -> str:
    host = message.get("host")
    return host if isinstance(host, str) and _HOST.fullmatch(host) else ""
