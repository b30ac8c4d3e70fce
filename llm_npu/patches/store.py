"""A patch for the store (rendezvous) of Paddle's processes, served by a thread of rank 0."""

from __future__ import annotations

import functools
import os
import socket
import struct
from contextlib import suppress

from paddle.base import core

TIMEOUT = 1.0  # seconds


@functools.cache
def fix_store_at_exit() -> None:
    """Paddle 3.3: rank 0 occasionally aborts at exit, after its work is done.

    The thread that serves the store keeps running while the process exits. If another rank then closes its
    connection, the thread writes its first log line (which nobody reads), and that needs a lock of the logger
    that has been destroyed. A line that has been reached before needs no lock: the patch opens and closes a
    connection as soon as there is a store, in both ways. The virtual NPU does the same for programs that do
    not use this package (csrc/virtual_npu/collectives/store.h).
    """
    stock = core.create_or_get_global_tcp_store

    @functools.cache
    def create_or_get_global_tcp_store():
        store = stock()
        if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
            with suppress(OSError):  # without the patch the process also trains, and rarely aborts at exit
                _close_connections()
        return store

    core.create_or_get_global_tcp_store = create_or_get_global_tcp_store


def _close_connections() -> None:
    master = os.environ.get("PADDLE_MASTER") or os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
    host, _, port = master.rpartition(":")
    address = host, int(port)
    with socket.create_connection(address, TIMEOUT) as reset:  # as a killed process may close it
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with socket.create_connection(address, TIMEOUT) as polite:
        polite.shutdown(socket.SHUT_WR)
        while polite.recv(1):  # until the store has closed it, too
            pass
