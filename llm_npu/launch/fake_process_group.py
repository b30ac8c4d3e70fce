"""Emulates the other ranks for the single process of a dry run.

The ranks of a job rendezvous through a key-value store on rank 0 (Paddle's TCPStore). ``FakeStore`` never
blocks its client: it assumes that every other rank does the same as this rank.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from virtual_npu import call_marks

LOCAL = "127.0.0.1"
EXCHANGE = "LLM_NPU_DRY_RUN_EXCHANGE"  # folder for data exchange between the processes of a dry run
STAGES = "stages.json"


class Command(enum.IntEnum):
    """The commands of Paddle's clients (phi/core/distributed/store/tcp_store.h of 3.3)."""

    ADD, GET, CHECK, SET, WAIT, STOP = range(6)


class Reply(enum.IntEnum):
    WAITING, STOP_WAIT, READY, NOT_READY = range(4)


class FakeStore(socketserver.ThreadingTCPServer):
    """A store for ``ranks`` ranks, only one of which exists, served by threads until the process exits.

    Adding to a counter counts once per rank. Keys that only other ranks would set exist and are empty.
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
    """One connection: commands with a key each, until the other side closes it."""

    server: FakeStore

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
        """Ignored: the process exits without this command."""

    def _bytes(self) -> bytes:
        (size,) = struct.unpack("<Q", self._exactly(8))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        return self.request.recv(size, socket.MSG_WAITALL) if size else b""


def start(program: Sequence[str], ranks: int) -> tuple[list[int], int]:
    """Run ``program``, a Python file and its arguments, as rank 0 of ``ranks``, then as other ranks.

    The other ranks are the first ranks of the further pipeline stages. Returns the ranks that ran, and the
    exit code of the first process that fails, else 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables, code, waiting = os.environ | {EXCHANGE: folder}, 0, [0]
        ran = []
        while waiting and code == 0:
            rank = waiting.pop(0)
            ran.append(rank)
            store = FakeStore(ranks)
            code = subprocess.run(
                [sys.executable, *program], env=variables | environment(rank, ranks, store.port)
            ).returncode
            store.shutdown()
            store.server_close()
            if rank == 0 and (stages := Path(folder) / STAGES).exists():
                waiting = json.loads(stages.read_text())[1:]
        return ran, code


def announce(stages: Sequence[int]) -> None:
    """On rank 0: save the first rank of each pipeline stage, in order."""
    if EXCHANGE in os.environ:
        (Path(os.environ[EXCHANGE]) / STAGES).write_text(json.dumps(list(stages)))


def environment(rank: int, ranks: int, port: int = 1) -> dict[str, str]:
    """The environment that paddle.distributed.launch sets for ``rank`` of ``ranks`` on one machine.

    ``port``: of the store.
    """
    endpoints = [f"{LOCAL}:{port}" for port in range(1, ranks + 1)]  # never connected to
    return {
        "FLAGS_selected_npus": "0",
        "PADDLE_MASTER": f"{LOCAL}:{port}",
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


def install() -> None:
    """Connect this process to a ``FakeStore`` if the run has other ranks.

    Call it after ``import paddle`` and before the parallel environment is initialized.
    """
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM") or 1)
    if ranks == 1:
        return
    from paddle.base import core

    call_marks.start()
    with _as_client():
        core.create_or_get_global_tcp_store()
    if EXCHANGE in os.environ:
        _exchange_by_files(Path(os.environ[EXCHANGE]))


@contextlib.contextmanager
def _as_client() -> Iterator[None]:
    """Let Paddle make the store of this process, for Python and C++, as a client.

    Paddle reads the rank once. Rank 0 would serve a store of its own and wait for the other ranks.
    """
    own = os.environ["PADDLE_TRAINER_ID"]
    os.environ["PADDLE_TRAINER_ID"] = "1"
    try:
        yield
    finally:
        os.environ["PADDLE_TRAINER_ID"] = own


def _exchange_by_files(folder: Path) -> None:
    """Pass integers, such as tensor shapes, from a stage to a later stage in files.

    The stages run one after the other, so a later stage finds the messages of earlier stages. DualPipeV's
    first stage broadcasts them.
    """
    from paddle import distributed

    upstream_send, upstream_receive = distributed.send, distributed.recv
    upstream_broadcast = distributed.broadcast
    messages: Counter[str] = Counter()

    def file_of(channel: str) -> Path:
        messages[channel] += 1
        return folder / f"{channel}-{messages[channel]}.json"

    def save(tensor, file: Path) -> None:
        file.write_text(json.dumps(tensor.numpy().tolist()))

    def load(tensor, file: Path) -> None:
        values = np.asarray(json.loads(file.read_text()), str(tensor.dtype).rpartition(".")[2])
        tensor.set_value(values.reshape(tensor.shape))

    def send(tensor, dst=0, group=None, sync_op=True):
        if not tensor.is_floating_point():
            save(tensor, file_of(f"{distributed.get_rank()}-{dst}"))
        return upstream_send(tensor, dst, group, sync_op)

    def recv(tensor, src=0, group=None, sync_op=True):
        task = upstream_receive(tensor, src, group, sync_op)
        if not tensor.is_floating_point():
            load(tensor, file_of(f"{src}-{distributed.get_rank()}"))
        return task

    def broadcast(tensor, src, group=None, sync_op=True):
        task = upstream_broadcast(tensor, src, group, sync_op)
        if not tensor.is_floating_point():
            file = file_of(f"{src}-all-{group.id if group else 0}")
            if src == distributed.get_rank():
                save(tensor, file)
            elif file.exists():  # other ranks have the values of this one
                load(tensor, file)
        return task

    distributed.send, distributed.recv, distributed.broadcast = send, recv, broadcast
