"""Accepts the hub's connections, and lets those in whose handshake proves that they are ranks of the run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from . import HANDSHAKE, LONGEST, TICK, WAITING
from .handshake import Closed, Guest, OtherSecret, admit
from .layout import Layout

Enter = Callable[[Guest, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Door:
    """``enter`` gets each rank that is let in; ``refuse`` the number of one with another secret.

    A handshake that takes longer than ``HANDSHAKE`` seconds ends, and so does the oldest of more than
    ``WAITING``: idle connections cost neither memory nor descriptors, and nothing is logged about them.
    """

    def __init__(self, layout: Layout, enter: Enter, refuse: Callable[[int], None]):
        self.layout, self.enter, self.refuse = layout, enter, refuse
        self._listener = socket.create_server(layout.hub, backlog=WAITING)
        self._listener.setblocking(False)
        self._waiting: dict[asyncio.Task, None] = {}  # the oldest first

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(self._listener)
            except OSError:  # it has ended already, or this process has too many files open
                await asyncio.sleep(TICK)
                continue
            if not self.layout.may_enter(address):
                connection.close()
                continue
            if len(self._waiting) == WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._meet(connection))
            task.add_done_callback(lambda task, connection=connection: self._ended(task, connection))
            self._waiting[task] = None
            await asyncio.sleep(0)  # the others' turn: sock_accept does not wait where one is there

    def close(self) -> None:
        self._listener.close()

    async def _meet(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST)
        try:
            guest = await asyncio.wait_for(admit(self.layout, reader, writer), HANDSHAKE)
            self._waiting.pop(asyncio.current_task(), None)
            await self.enter(guest, reader, writer)
        except OtherSecret as other:
            self.refuse(other.rank)
        except (Closed, OSError, asyncio.TimeoutError):
            pass
        finally:
            writer.transport.abort()

    def _ended(self, task: asyncio.Task, connection: socket.socket) -> None:
        self._waiting.pop(task, None)
        connection.close()  # of a task that was cancelled before it began
