"""The launchers' master: an HTTP server of Paddle's, which anybody may reach, made to bear that.

In a run with a secret it answers only those whose paths begin with a word that is made of the secret. It
closes connections that are idle, and the oldest of too many, and stores nothing that is not a launcher's.
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

GONE = 10.0  # seconds without a word after which a launcher that had been heard of has ended
IDLE = 5.0  # seconds until a connection without a request is closed
WAITING = 64  # open connections
LARGEST = 1 << 16  # bytes that a launcher tells about its machine
KEY = re.compile(r"/.{1,500}/[0-9]{1,5}", re.ASCII)
WORD = "/run-"  # what the paths of a run with a secret begin with
OTHER_SECRET = 403  # the status of an answer


def path_word(secret: str, address: str) -> str:
    """What the paths begin with that the master at ``address`` answers; "" without a secret."""
    if not secret:
        return ""
    return WORD + hmac.new(secret.encode(), f"master {address}".encode(), hashlib.sha256).hexdigest()


def _is_object(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value.decode()), dict)
    except (ValueError, RecursionError):
        return False


def machine_ranks(came: Iterable[str]) -> list[int]:
    """The NODE_RANKs at the ends of these keys."""
    return sorted(int(key.rpartition("/")[2]) for key in came)


class NotALauncher(Exception):
    """What came is not what a launcher tells."""


class Register(dict):
    """What the launchers of ``machines`` machines have told the master: {".../HOST_IP/NODE_RANK": text}.

    One that waits tells it twice a second; what has not been told for GONE seconds is forgotten. The machines
    have met when all numbers are there, and each has been told again since the last one came: a launcher that
    has ended is not among them. Then nothing changes any more.
    """

    def __init__(self, machines: int, *content):
        super().__init__(*content)
        self._machines, self._told, self._last, self._met = machines, {}, 0.0, False

    def __setitem__(self, key: str, value: bytes) -> None:
        if self._met:
            return
        if not KEY.fullmatch(key) or not _is_object(value):
            raise NotALauncher  # Paddle's handler answers 500
        now = time.monotonic()
        if self.get(key) != value:
            self._last = now
        super().__setitem__(key, value)
        self._told[key] = now
        for other in [each for each, told in self._told.items() if now - told > GONE]:
            del self[other]
        complete = len(set(machine_ranks(self._told))) == len(self._told) == self._machines
        self._met = complete and min(self._told.values()) >= self._last

    def items(self):
        """What launchers are answered: of as many as may have met only those that have told it again."""
        if self._met or len(self._told) < self._machines:
            return super().items()
        return [item for item in super().items() if self._told.get(item[0], self._last) >= self._last]

    def __delitem__(self, key: str) -> None:
        if not self._met:
            super().__delitem__(key)
            del self._told[key]


def server_class(paddles: ModuleType, host: str, machines: int, word: str) -> type:
    """The class of the master on the first machine; ``paddles``: the module of Paddle's own.

    It listens on ``host``, not on all addresses, and forgets launchers that have ended.
    """

    class Handler(_Guard, paddles.KVHandler):
        pass

    class Server(_Patient, paddles.KVServer):
        def __init__(self, port):
            super().__init__(port)
            self.RequestHandlerClass, self.kv = Handler, Register(machines, self.kv)

        def server_bind(self):
            self.server_address = host, self.server_address[1]
            socketserver.TCPServer.server_bind(self)  # HTTPServer's asks for the address's name as well

    Handler.word = word
    return Server


class _Patient(socketserver.ThreadingMixIn):
    """A server with a thread for each connection, of at most ``WAITING``: the oldest of more is closed."""

    daemon_threads, request_queue_size = True, WAITING

    def __init__(self, *arguments):
        self._connections, self._lock = {}, threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request, client_address):
        with self._lock:
            if len(self._connections) >= WAITING:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with contextlib.suppress(OSError):  # it has ended already
                    oldest.shutdown(socket.SHUT_RDWR)
            self._connections[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        """Nothing: a stranger's connection has ended."""


class _Guard:
    """In front of Paddle's handler of requests: refuses those that are not of this run, or too large."""

    timeout = IDLE  # of each read
    word = ""  # what paths must begin with

    def parse_request(self):
        if not super().parse_request():
            return False
        length = self.headers.get("Content-Length", "0")
        if self.command not in ("GET", "PUT", "POST", "DELETE"):  # HEAD would be answered from the folder
            self.send_error(405)
        elif not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= LARGEST):
            self.send_error(413)
        elif self.path.startswith(WORD) if not self.word else not self.path.startswith(f"{self.word}/"):
            self.send_error(OTHER_SECRET)
        else:
            self.path = self.path[len(self.word) :]
            return True
        return False
