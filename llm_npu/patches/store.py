"""Patches for the rendezvous store of Paddle's processes, served by a thread of rank 0."""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from paddle.base import core

from llm_npu.core.console import say

TIMEOUT = 1.0  # seconds
# <linux/bpf_common.h> and <linux/filter.h>: instructions of a socket filter (code, jt, jf, k), and an offset.
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN, _NETWORK_HEADER = 0x20, 0x15, 0x06, 2**32 - 0x100000
_DESTINATION, _WHOLE_PACKET = 16, 2**32 - 1  # offset in a header of IPv4; length
_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>


@functools.cache
def fix_store_at_exit() -> None:
    """Paddle 3.3: rank 0 occasionally aborts at exit, after its work is done.

    The thread that serves the store keeps running while the process exits. If another rank then closes its
    connection, the thread writes its first log line, which needs a logger lock that has already been
    destroyed. Once a log line has been written, no lock is needed. Therefore the patch opens and closes
    connections in both ways as soon as the store exists. The virtual NPU does the same for programs without
    this package (virtual_npu/csrc/collectives/store.h).
    """
    _when_rank_0_has_the_store(_close_connections)


@functools.cache
def fix_store_address() -> None:
    """Paddle 3: the store listens on all addresses of rank 0's machine (0.0.0.0), not only on the master's.

    Any host that can reach the machine could read and set the keys, which are not protected. After all ranks
    have connected, the patch attaches a filter to the listening socket. It drops packets to addresses other
    than the address in ``PADDLE_MASTER``.
    """
    _when_rank_0_has_the_store(_listen_on)


def _when_rank_0_has_the_store(act: Callable[[str, int], None]) -> None:
    """Call ``act`` in rank 0 with the store's host and port, once the store exists."""
    upstream = core.create_or_get_global_tcp_store

    @functools.cache
    def create_or_get_global_tcp_store():
        store = upstream()
        if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
            master = os.environ.get("PADDLE_MASTER") or os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
            host, _, port = master.rpartition(":")
            act(host, int(port))
        return store

    core.create_or_get_global_tcp_store = create_or_get_global_tcp_store


def _close_connections(*address: str | int) -> None:
    # On failure, training still works, but rank 0 may rarely abort at exit.
    with suppress(OSError):
        _close_both_ways(address)


def _close_both_ways(address: tuple) -> None:
    with socket.create_connection(address, TIMEOUT) as reset:  # reset, as after a killed process
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with socket.create_connection(address, TIMEOUT) as polite:
        polite.shutdown(socket.SHUT_WR)
        while polite.recv(1):  # until the store also closes the connection
            pass


def _listen_on(host: str, port: int) -> None:
    """Restrict the sockets that listen on ``port`` to packets for ``host``."""
    try:
        address = int(ipaddress.IPv4Address(socket.gethostbyname(host)))
        instructions = [
            (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _DESTINATION),
            (_JUMP_IF_EQUAL, 0, 1, address),
            (_RETURN, 0, 0, _WHOLE_PACKET),
            (_RETURN, 0, 0, 0),
        ]
        program = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
        memory = ctypes.create_string_buffer(program, len(program))
        filter_program = struct.pack("HP", len(instructions), ctypes.addressof(memory))
        for listening in _listening(port):
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
    except OSError as error:
        say(f"note     Paddle's store listens on port {port} of all addresses of this machine ({error})")


def _listening(port: int) -> Iterator[socket.socket]:
    """Duplicates of this process's sockets that listen on ``port``."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not entry.readlink().name.startswith("socket:"):
                continue
            listener = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # closed in the meantime
            continue
        with listener:
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and listener.family == socket.AF_INET and listener.getsockname()[1] == port:
                yield listener
