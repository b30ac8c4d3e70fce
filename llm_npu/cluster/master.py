"""The launchers' master: Paddle's HTTP server, hardened because its port is reachable by anyone.

In a run with a secret, it only answers requests with a path prefix derived from the secret. It closes idle
connections and the oldest of too many, and stores only valid launcher data.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from types import ModuleType

LAUNCHER_TIMEOUT = 10.0  # seconds without a request after which a known launcher has exited
IDLE_TIMEOUT = 5.0  # seconds until a connection without a request is closed
MAX_CONNECTIONS = 64
MAX_BODY = 1 << 16  # bytes of a launcher's description of its machine
KEY = re.compile(r"/.{1,500}/[0-9]{1,5}", re.ASCII)
PREFIX = "/run-"  # of the paths in a run with a secret
WRONG_SECRET = 403  # HTTP status


def path_prefix(secret: str, address: str) -> str:
    """The prefix of the paths that the master at ``address`` serves; "" without a secret."""
    if not secret:
        return ""
    return PREFIX + hmac.new(secret.encode(), f"master {address}".encode(), hashlib.sha256).hexdigest()


def _is_object(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value.decode()), dict)
    except (ValueError, RecursionError):
        return False


def machine_ranks(keys: Iterable[str]) -> list[int]:
    """The NODE_RANKs at the ends of these keys."""
    return sorted(int(key.rpartition("/")[2]) for key in keys)


class NotALauncher(Exception):
    """A request that no launcher sends."""


class Register(dict):
    """The launchers of ``machines`` machines that are registered: {".../HOST_IP/NODE_RANK": description}.

    A waiting launcher registers again twice a second, and is removed after LAUNCHER_TIMEOUT seconds without a
    request. The rendezvous is complete when all NODE_RANKs are registered and each launcher has renewed its
    entry since the last new one, which excludes launchers that have exited. Then the register is frozen.
    """

    def __init__(self, machines: int, *content):
        super().__init__(*content)
        self._machines, self._complete = machines, False
        self._renewed: dict[str, float] = {}  # time of each launcher's last request
        self._changed = 0.0  # time of the last new entry

    def __setitem__(self, key: str, value: bytes) -> None:
        if self._complete:
            return
        if not KEY.fullmatch(key) or not _is_object(value):
            raise NotALauncher  # Paddle's handler answers 500
        now = time.monotonic()
        if self.get(key) != value:
            self._changed = now
        super().__setitem__(key, value)
        self._renewed[key] = now
        for other in [other for other, renewed in self._renewed.items() if now - renewed > LAUNCHER_TIMEOUT]:
            del self[other]
        all_registered = len(set(machine_ranks(self._renewed))) == len(self._renewed) == self._machines
        self._complete = all_registered and min(self._renewed.values()) >= self._changed

    def items(self):
        """The answer to launchers; once enough are registered, only those that have renewed their entry."""
        if self._complete or len(self._renewed) < self._machines:
            return super().items()
        return [
            item for item in super().items() if self._renewed.get(item[0], self._changed) >= self._changed
        ]

    def __delitem__(self, key: str) -> None:
        if not self._complete:
            super().__delitem__(key)
            del self._renewed[key]


def server_class(kv_server: ModuleType, host: str, machines: int, prefix: str) -> type:
    """The master's class on the first machine, derived from the one in Paddle's module ``kv_server``.

    It listens on ``host`` instead of all addresses, and removes launchers that have exited.
    """

    class Handler(_RequestFilter, kv_server.KVHandler):
        pass

    class Server(_LimitedServer, kv_server.KVServer):
        def __init__(self, port):
            super().__init__(port)
            self.RequestHandlerClass, self.kv = Handler, Register(machines, self.kv)

        def server_bind(self):
            self.server_address = host, self.server_address[1]
            socketserver.TCPServer.server_bind(self)  # HTTPServer's version also resolves the host name

    Handler.prefix = prefix
    return Server


class _LimitedServer(socketserver.ThreadingMixIn):
    """A thread for each of at most ``MAX_CONNECTIONS`` connections; the oldest of more is closed."""

    daemon_threads, request_queue_size = True, MAX_CONNECTIONS

    def __init__(self, *arguments):
        self._connections, self._lock = {}, threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request, client_address):
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with contextlib.suppress(OSError):  # it is closed already
                    oldest.shutdown(socket.SHUT_RDWR)
            self._connections[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        """Log nothing: the failed connection need not come from a launcher."""


class _RequestFilter:
    """Rejects requests of other runs and oversized ones before Paddle's request handler sees them."""

    timeout = IDLE_TIMEOUT  # of each read
    prefix = ""  # required of all paths

    def parse_request(self):
        if not super().parse_request():
            return False
        length = self.headers.get("Content-Length", "0")
        if self.command not in ("GET", "PUT", "POST", "DELETE"):  # HEAD would be answered from the folder
            self.send_error(405)
        elif not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= MAX_BODY):
            self.send_error(413)
        elif self.path.startswith(PREFIX) if not self.prefix else not self.path.startswith(f"{self.prefix}/"):
            self.send_error(WRONG_SECRET)
        else:
            self.path = self.path[len(self.prefix) :]
            return True
        return False
