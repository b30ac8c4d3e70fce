"""Before a rank counts as present, hub and member prove to each other that they know the run's secret.

    member -> hub    hello (rank, nonce)
    hub -> member    hello (host, nonce, proof)
    member -> hub    proof (host, proof)
    hub -> member    welcome

A proof is an HMAC of both nonces and of the endpoints of all ranks; the secret itself is not sent. In a run
without a secret (an empty one) it shows only that both belong to the same ranks, and the hub also compares
the member's address with that of the rank.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import socket
from typing import NamedTuple

from .layout import Layout
from .messages import receive, send

_NONCE = re.compile(r"[0-9a-f]{32}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,64}")
OTHER_SECRET = "it has another LLM_NPU_RUN_SECRET, or other endpoints of the ranks"


class OtherSecret(Exception):
    """The other side has another secret, or belongs to other ranks."""

    def __init__(self, rank: int = 0):
        self.rank = rank


class Closed(Exception):
    """The other side has ended the connection, or is something else than a rank of this project."""


class Guest(NamedTuple):
    """A rank that has proved itself to the hub, and its machine's name."""

    rank: int
    host: str


async def join(layout: Layout, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """The member's side; returns the name of the hub's machine. Raises OtherSecret and Closed."""
    own = secrets.token_hex(16)
    await send(writer, kind="hello", rank=layout.rank, nonce=own)
    answer = await _expected(reader, "hello")
    nonces = own, _nonce(answer)
    mine = _proof(layout, "member", layout.rank, *nonces)
    await send(writer, kind="proof", host=socket.gethostname(), proof=mine)
    if not _is(answer, _proof(layout, "hub", layout.rank, *nonces)):
        raise OtherSecret
    await _expected(reader, "welcome")
    return _host(answer)


async def admit(layout: Layout, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Guest:
    """The hub's side, up to the proof; a welcome follows. Raises OtherSecret and Closed."""
    hello, own = await _expected(reader, "hello"), secrets.token_hex(16)
    rank, nonces = hello.get("rank"), (_nonce(hello), own)
    address = writer.get_extra_info("peername")[0]
    if type(rank) is not int or not 0 <= rank < len(layout.endpoints) or not layout.may_be(rank, address):
        raise Closed
    mine = _proof(layout, "hub", rank, *nonces)
    await send(writer, kind="hello", host=socket.gethostname(), nonce=own, proof=mine)
    answer = await _expected(reader, "proof")
    if not _is(answer, _proof(layout, "member", rank, *nonces)):
        raise OtherSecret(rank)
    return Guest(rank, _host(answer))


def _proof(layout: Layout, side: str, rank: int, *nonces: str) -> str:
    said = "\n".join([side, str(rank), *nonces, *layout.endpoints])
    return hmac.new(layout.secret.encode(), said.encode(), hashlib.sha256).hexdigest()


def _is(message: dict, proof: str) -> bool:
    came = message.get("proof")
    return isinstance(came, str) and hmac.compare_digest(came.encode(errors="replace"), proof.encode())


async def _expected(reader: asyncio.StreamReader, kind: str) -> dict:
    message = await receive(reader)
    if not message or message.get("kind") != kind:
        raise Closed
    return message


def _nonce(message: dict) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise Closed
    return nonce


def _host(message: dict) -> str:
    host = message.get("host")
    return host if isinstance(host, str) and _HOST.fullmatch(host) else ""
