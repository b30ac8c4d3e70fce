"""The launchers' master answers launchers of its run only, and nobody keeps it from that."""

import contextlib
import http.client
import json
import socket
import time

import pytest
from paddle.distributed.launch.utils import kv_server

from llm_npu.cluster import master

SECRET = "0123456789abcdef"
HOST = "127.0.0.1"
KEY = "/default/info/10.0.0.2/1"
VALUE = json.dumps({"replicas": 1}).encode()


@contextlib.contextmanager
def serving(secret=SECRET, machines=2):
    """The port of a master, and what its paths begin with."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    word = master.path_prefix(secret, f"{HOST}:{port}")
    server = master.server_class(kv_server, HOST, machines, word)(port)
    server.start()
    try:
        yield port, word
    finally:
        server.stop()


def ask(port, path, method="GET", body=None, **headers):
    """The status and the body of an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("secret", [SECRET, ""])
def test_a_launcher_of_the_run(secret):
    with serving(secret) as (port, word):
        assert ask(port, f"{word}/healthy")[0] == 200
        assert ask(port, f"{word}{KEY}", "POST", VALUE)[0] == 200
        assert json.loads(ask(port, f"{word}/default/info")[1]) == {KEY: VALUE.decode()}
        assert ask(port, f"{word}{KEY}", "DELETE")[0] == 200


def test_another_secret_or_none():
    with serving() as (port, word):
        ask(port, f"{word}{KEY}", "POST", VALUE)
        other = master.path_prefix("fedcba9876543210", f"{HOST}:{port}")
        for begin in ("", other, f"{word}0", "/run-", "/"):
            assert ask(port, f"{begin}/healthy")[0] == master.WRONG_SECRET
            assert ask(port, f"{begin}{KEY}", "DELETE")[0] == master.WRONG_SECRET
            assert ask(port, f"{begin}/default/info/10.0.0.9/1", "POST", VALUE)[0] == master.WRONG_SECRET
        assert json.loads(ask(port, f"{word}/default/info")[1]) == {KEY: VALUE.decode()}
    with serving("") as (port, _):
        assert ask(port, f"{other}/healthy")[0] == master.WRONG_SECRET


REQUESTS = {
    "no number": ("/default/info/10.0.0.2/x", "POST", VALUE, {}),
    "no text": (KEY, "POST", b"\xff\xfe", {}),
    "no object": (KEY, "POST", b"[1]", {}),
    "too deep": (KEY, "POST", b"[" * 60000, {}),
    "too large": (KEY, "POST", b"{}" + b" " * master.MAX_BODY, {}),
    "a length of words": (KEY, "POST", None, {"Content-Length": "many"}),
    "a negative length": (KEY, "POST", None, {"Content-Length": "-1"}),
    "a huge length": (KEY, "POST", None, {"Content-Length": "9" * 30}),
    "a file's size": ("/pyproject.toml", "HEAD", None, {}),
    "another method": (KEY, "PATCH", VALUE, {}),
}


def test_what_is_refused(capfd):
    with serving("") as (port, _):
        for name, (path, method, body, headers) in REQUESTS.items():
            assert ask(port, path, method, body, **headers)[0] in (405, 413, 500), name
            assert ask(port, "/default/info")[0] == 404, name  # nothing is stored
    assert capfd.readouterr() == ("", "")


def test_idle_connections_keep_nobody_waiting(capfd):
    with serving() as (port, word), contextlib.ExitStack() as idle:
        for number in range(150):
            connection = idle.enter_context(socket.create_connection((HOST, port)))
            connection.sendall([b"", b"GET /", b"\x00\xff\n", b"[" * 1000][number % 4])
        begun = time.monotonic()
        assert ask(port, f"{word}/healthy")[0] == 200
        assert time.monotonic() - begun < master.IDLE_TIMEOUT
    assert capfd.readouterr() == ("", "")
