"""A patch for the store through which Paddle's processes find each other; a thread of rank 0 serves it."""

from __future__ import annotations

import functools
import os
import socket
import struct
from contextlib import suppress

from paddle.base import core

TIMEOUT = 1.0  # seconds


@functools.cache
def store_outlives_its_clients() -> None:
    """Paddle 3.3: rank 0 aborts at its end now and then, after its work is done.

    The thread that serves the store goes on while the process ends. When another rank then closes its
    connection, the thread writes a line of the log (which nobody reads) for the first time, and needs for
    that a lock of the log that is gone. A line that has been reached before needs no lock: here a connection
    is made and closed as soon as there is a store, in both ways. The virtual NPU does the same for programs
    that know nothing of this package (csrc/virtual_npu/collectives/store.h).
    """
    stock = core.create_or_get_global_tcp_store

    @functools.cache
    def create_or_get_global_tcp_store():
        store = stock()
        if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
            with suppress(OSError):  # without it the process trains as well, and seldom ends badly
                _close_connections()
        return store

    core.create_or_get_global_tcp_store = create_or_get_global_tcp_store


def _close_connections() -> None:
    master = os.environ.get("PADDLE_MASTER") or os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
    host, _, port = master.rpartition(":")
    address = host, int(port)
    with socket.create_connection(address, TIMEOUT) as reset:  # as a process that is killed may close it
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with socket.create_connection(address, TIMEOUT) as polite:
        polite.shutdown(socket.SHUT_WR)
        while polite.recv(1):  # until the store has closed it, too
            pass
