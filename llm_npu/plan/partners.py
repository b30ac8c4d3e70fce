"""One process of a dry run stands for all: what it asks of the others' store is answered for them.

A job of many ranks meets through a store of keys on its first process (Paddle's TCPStore). ``PartnerStore``
is one that never lets anybody wait: each partner is taken to do what this process does.
"""

from __future__ import annotations

import enum
import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

LOCAL = "127.0.0.1"


class Command(enum.IntEnum):
    """As Paddle's clients send them (phi/core/distributed/store/tcp_store.h of 3.3)."""

    ADD, GET, CHECK, SET, WAIT, STOP = range(6)


class Reply(enum.IntEnum):
    WAITING, STOP_WAIT, READY, NOT_READY = range(4)


class PartnerStore(socketserver.ThreadingTCPServer):
    """A store for ``ranks`` processes of which one exists, served by threads until the process ends.

    What this process adds to a counter, all add. Keys that only others would set are there, and empty.
    """

    daemon_threads = True

    def __init__(self, ranks: int):
        super().__init__((LOCAL, 0), _Client)
        self.ranks = ranks
        self.values: dict[bytes, bytes] = {}
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return self.server_address[1]


class _Client(socketserver.BaseRequestHandler):
    """One connection: commands, each with a key, until the other side closes it."""

    server: PartnerStore

    def handle(self):
        while (word := self.request.recv(4, socket.MSG_WAITALL)) and len(word) == 4:
            command, key = Command(struct.unpack("<i", word)[0]), self._bytes()
            answer = getattr(self, command.name.lower())(key)
            if answer:
                self.request.sendall(answer)

    def add(self, key: bytes) -> bytes:
        (more,) = struct.unpack("<q", self._exactly(8))
        with self.server.lock:
            total = int(self.server.values.get(key) or 0) + more * self.server.ranks
            self.server.values[key] = str(total).encode()
        return struct.pack("<q", total)

    def get(self, key: bytes) -> bytes:
        value = self.server.values.get(key, b"")
        return struct.pack("<Q", len(value)) + value

    def set(self, key: bytes) -> None:
        self.server.values[key] = self._bytes()

    def check(self, key: bytes) -> bytes:
        return struct.pack("<i", Reply.READY)

    def wait(self, key: bytes) -> bytes:
        return struct.pack("<i", Reply.STOP_WAIT)

    def stop(self, key: bytes) -> None:
        """Nothing to do: the process ends by itself."""

    def _bytes(self) -> bytes:
        (size,) = struct.unpack("<Q", self._exactly(8))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        return self.request.recv(size, socket.MSG_WAITALL) if size else b""


def start(script: str, argv: Sequence[str], ranks: int) -> int:
    """Run ``script argv`` as the first of ``ranks`` processes; returns its exit code."""
    return subprocess.run([sys.executable, script, *argv], env=os.environ | environment(0, ranks)).returncode


def environment(rank: int, ranks: int) -> dict[str, str]:
    """What paddle.distributed.launch would tell process ``rank`` of ``ranks`` on one machine."""
    endpoints = [f"{LOCAL}:{port}" for port in range(1, ranks + 1)]  # nobody connects to them
    return {
        "FLAGS_selected_npus": "0",
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_NNODES": "1",
        "PADDLE_GLOBAL_SIZE": str(ranks),
        "PADDLE_LOCAL_SIZE": str(ranks),
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_GLOBAL_RANK": str(rank),
        "PADDLE_LOCAL_RANK": str(rank),
        "PADDLE_RANK_IN_NODE": "0",
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
    }


def stand_for_all() -> None:
    """Let this process of a dry run go on without the others, if there are any.

    After ``import paddle``, before its parallel environment is made.
    """
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM") or 1)
    if ranks == 1:
        return
    from paddle.base import core

    store = core.TCPStore(LOCAL, PartnerStore(ranks).port, False, ranks, 60)
    core.create_or_get_global_tcp_store = lambda: store
