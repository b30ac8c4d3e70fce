"""Strangers that reach the coordinator's port: not admitted without a proof, nothing printed, no harm."""

import asyncio
import contextlib
import json
import logging
import resource
import socket
import sys
import time

import pytest
from watched_ranks import Ranks

from llm_npu.launch import heartbeat
from llm_npu.launch.heartbeat import coordinator, protocol, worker
from llm_npu.launch.heartbeat.coordinator import Coordinator
from llm_npu.launch.heartbeat.protocol import ConnectionRejected, Layout, SecretMismatch, printable, send

HOSTS = ["127.0.0.1", "127.0.0.1", "127.0.0.2"]  # of three ranks
SECRET, OTHER = "0123456789abcdef", "fedcba9876543210"
ESCAPES = "\x1b[2J\x1b]0;title\x07 lost\r\nerror: \u202eall\ud800 fine"


class Run:
    """A coordinator in this process, and what may connect to it."""

    def __init__(self, secret):
        with socket.create_server((HOSTS[0], 0)) as free:
            port = free.getsockname()[1]
        self.endpoints = [f"{host}:{port + number}" for number, host in enumerate(HOSTS)]
        self.coordinator = Coordinator(Layout(0, self.endpoints, secret))
        self.secret, self.open_ones = secret, []

    @contextlib.asynccontextmanager
    async def open(self):
        listener = self.coordinator.listen()
        serving = asyncio.create_task(listener.serve())
        yield
        serving.cancel()
        listener.close()

    async def connect(self, address=HOSTS[2]):
        return await asyncio.open_connection(
            *self.coordinator.layout.coordinator, local_addr=(address, 0), limit=1 << 16
        )

    async def join(self, rank=2, secret=None, address=HOSTS[2]):
        layout = Layout(rank, self.endpoints, self.secret if secret is None else secret)
        reader, writer = await self.connect(address)
        self.open_ones.append(writer)  # one that nobody refers to is closed
        await protocol.join(layout, reader, writer)
        return reader, writer

    @property
    def states(self):
        return [peer.state for peer in self.coordinator.peers]


def run(secret, attack):
    """``attack(run)`` against a coordinator that listens; the run."""

    async def whole():
        attacked = Run(secret)
        async with attacked.open():
            await asyncio.wait_for(attack(attacked), 60)
        return attacked

    return asyncio.run(whole())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def silent(caplog, capfd):
    """Nothing that strangers send may reach a log or a terminal."""
    caplog.set_level(logging.WARNING)
    yield
    assert caplog.records == [] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("secret", [SECRET, ""])
def test_a_rank_of_the_run_takes_part(secret):
    async def attack(run):
        await run.join()
        assert run.states == ["absent", "absent", "alive"]

    assert run(secret, attack).coordinator.peers[2].host == socket.gethostname()


@pytest.mark.parametrize(("secret", "others"), [(SECRET, OTHER), (SECRET, ""), ("", OTHER)])
def test_another_secret_is_refused_on_both_sides(secret, others):
    async def attack(run):
        with pytest.raises(SecretMismatch):
            await run.join(secret=others)
        await until(lambda: run.coordinator.peers[2].reason)
        assert run.states == ["absent"] * 3

    assert run(secret, attack).coordinator.peers[2].reason == protocol.BAD_SECRET


def test_without_a_secret_a_rank_is_known_by_its_address():
    async def attack(run):
        for address in ("127.0.0.1", "127.0.0.3"):
            with pytest.raises(ConnectionRejected):
                await run.join(address=address)
        assert run.states == ["absent"] * 3
        await run.join(rank=1, address="127.0.0.1")

    assert run("", attack).states == ["absent", "alive", "absent"]


def test_a_secret_counts_from_any_address():
    async def attack(run):
        await run.join(address="127.0.0.3")

    assert run(SECRET, attack).states == ["absent", "absent", "alive"]


def test_nobody_takes_the_place_of_a_rank_that_is_there():
    async def attack(run):
        await run.join()
        with pytest.raises(ConnectionRejected):
            await run.join()
        assert run.states[2] == "alive"

    run(SECRET, attack)


HELLO = {"kind": "hello", "rank": 2, "nonce": "0" * 32}
LINES = {
    "nothing": b"",
    "no line": b'{"kind": "hello"',
    "no text": b"\xff\xfe\x00\n",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "too deep": b"[" * 30000 + b"\n",
    "too long": b'{"kind": "' + b"x" * (1 << 20) + b'"}\n',
    "a list": b"[1]\n",
    "a number": b"1" * 20000 + b"\n",
    "heartbeats": b"\n" * 1000,
    "an abort": b'{"kind": "abort", "message": "all is lost", "exit_code": 0}\n',
    "no nonce": json.dumps({**HELLO, "nonce": None}).encode() + b"\n",
    "an odd nonce": json.dumps({**HELLO, "nonce": "\ud800" * 32}).encode() + b"\n",
    "no rank": json.dumps({**HELLO, "rank": True}).encode() + b"\n",
    "another rank": json.dumps({**HELLO, "rank": 3}).encode() + b"\n",
    "a negative rank": json.dumps({**HELLO, "rank": -1}).encode() + b"\n",
    "a rank of text": json.dumps({**HELLO, "rank": "2"}).encode() + b"\n",
    "a huge rank": b'{"kind": "hello", "rank": ' + b"9" * 10000 + b"}\n",
    "no proof": json.dumps(HELLO).encode() + b'\n{"kind": "proof"}\n',
    "an odd proof": json.dumps(HELLO).encode() + b'\n{"kind": "proof", "proof": "\\ud800"}\n',
    "a proof of numbers": json.dumps(HELLO).encode() + b'\n{"kind": "proof", "proof": [1]}\n',
    "an abort without a proof": json.dumps(HELLO).encode() + b'\n{"kind": "abort", "message": "x"}\n',
}


@pytest.mark.parametrize("secret", [SECRET, ""])
@pytest.mark.parametrize("name", LINES)
def test_strangers_are_not_let_in(secret, name):
    async def attack(run):
        reader, writer = await run.connect()
        writer.write(LINES[name])
        if writer.can_write_eof():
            writer.write_eof()
        with contextlib.suppress(ConnectionError):  # it ends with a reset
            await reader.read()
            while await reader.read(1 << 16):
                pass
        writer.close()
        assert run.states == ["absent"] * 3 and run.coordinator.reported is None
        await run.join()

    assert run(secret, attack).states == ["absent", "absent", "alive"]


def test_a_proof_serves_once_and_on_one_side_only():
    async def attack(run):
        reader, writer = await run.connect()
        await send(writer, **HELLO)
        answer = json.loads(await reader.readline())
        await send(writer, kind="proof", proof=answer["proof"])  # the coordinator's own
        assert await reader.read() == b""
        assert run.states == ["absent"] * 3

    run(SECRET, attack)


@pytest.mark.sampled
@pytest.mark.parametrize("secret", [SECRET, ""])
def test_idle_connections_are_few_and_keep_nobody_out(secret):
    async def attack(run):
        idle = [await run.connect() for _ in range(300)]
        await run.join()
        left = 0
        for reader, _ in idle:
            with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
                if not reader.at_eof():
                    await asyncio.wait_for(reader.read(1), 0.001)
                    continue
            left += not reader.at_eof() and reader.exception() is None
        assert left <= heartbeat.MAX_PENDING
        for _, writer in idle:
            writer.close()

    assert run(secret, attack).states == ["absent", "absent", "alive"]


def test_a_handshake_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(coordinator, "HANDSHAKE_TIMEOUT", 0.2)

    async def attack(run):
        reader, writer = await run.connect()
        await send(writer, **HELLO)
        assert json.loads(await reader.readline())["kind"] == "hello"
        assert await reader.read() == b""

    run(SECRET, attack)


def test_too_many_files_are_no_end(monkeypatch):
    """A listener that fails is asked again, without a line in a log."""

    async def attack(run):
        _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        reader, writer = await run.connect()
        resource.setrlimit(resource.RLIMIT_NOFILE, (writer.get_extra_info("socket").fileno() + 1, hard))
        try:
            await asyncio.sleep(0.1)  # the coordinator cannot accept it now
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        run.open_ones.append(writer)
        await protocol.join(Layout(2, run.endpoints, SECRET), reader, writer)

    assert run(SECRET, attack).states == ["absent", "absent", "alive"]


def test_what_a_rank_says_is_printable():
    async def attack(run):
        _, writer = await run.join()
        await send(writer, kind="exited", reason=ESCAPES * 100)
        await until(lambda: run.states[2] == "exited")

    reason = run(SECRET, attack).coordinator.peers[2].reason
    assert reason.isprintable() and "\x1b" not in reason and len(reason) <= heartbeat.MAX_TEXT + 4
    assert reason.endswith("?[2J?]0;title? lost error: ?all? fine")


def test_a_rank_that_gives_up_chooses_no_words():
    async def attack(run):
        _, writer = await run.join()
        await send(writer, kind="coordinator_lost", message=ESCAPES, exit_code=0)
        await until(lambda: run.coordinator.reported)

    sentence, code = run(SECRET, attack).coordinator.reported
    assert code == heartbeat.EXIT_LOST and "fine" not in sentence and sentence.isprintable()
    assert "the machine 127.0.0.1 (ranks 0 to 1) " in sentence


@pytest.mark.sampled
@pytest.mark.parametrize("value", [None, 7, ["x"], {"a": 1}])
def test_what_is_no_text_is_not_shown(value):
    assert printable(value) == ""


@pytest.mark.sampled
@pytest.mark.parametrize(("secret", "more"), [("", worker.OTHER_ADDRESS), (SECRET, "")])
def test_a_rank_that_is_not_admitted_says_why(monkeypatch, secret, more):
    monkeypatch.setattr(worker, "JOIN_TIMEOUT", 1)

    async def whole():
        attacked = Run(secret)
        async with await impostor(attacked, {"kind": "goodbye"}):
            rank = worker.Worker(Layout(2, attacked.endpoints, secret), asyncio.Event(), lambda line: None)
            return await rank.run()

    sentence, code = asyncio.run(whole())
    assert code == heartbeat.EXIT_LOST and sentence.endswith(f" is down: {worker.NOT_RANK_0}{more}.")


async def impostor(run, answer):
    """Somebody else listens where the coordinator should."""

    async def serve(reader, writer):
        await reader.readline()
        await send(writer, **answer)
        await reader.read()
        writer.close()

    return await asyncio.start_server(serve, *run.coordinator.layout.coordinator)


def test_a_rank_does_not_listen_to_an_impostor():
    async def whole():
        attacked = Run(SECRET)
        answer = {"kind": "hello", "host": ESCAPES, "nonce": "0" * 32, "proof": "0" * 64}
        async with await impostor(attacked, answer):
            with pytest.raises(SecretMismatch):
                await attacked.join()
        async with await impostor(attacked, {"kind": "abort", "message": ESCAPES, "exit_code": 1}):
            with pytest.raises(ConnectionRejected):
                await attacked.join()

    asyncio.run(whole())


ATTACK = """
import os, socket, sys, time
coordinator, own, count = sys.argv[1].rpartition(":"), sys.argv[2], int(sys.argv[3])
idle, words = [], [b"[" * 30000 + b"\\n", sys.argv[4].encode() + b"\\n", b"\\x1b[2J\\n", b""]
for number in range(count):
    try:
        connection = socket.create_connection((coordinator[0], int(coordinator[2])), 5, (own, 0))
        connection.sendall(words[number % len(words)])
        idle.append(connection)
    except OSError:
        pass
print("done", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("secret", [SECRET, ""])
def test_a_run_under_attack_trains_on(three_apart, tmp_path, secret):
    """A thousand connections each from a stranger and from one of the machines, then the last rank starts."""
    two, stranger = three_apart[:2], three_apart[2]
    ranks = Ranks(two, tmp_path, absent=[2], LLM_NPU_RUN_SECRET=secret)
    ranks.wait_until_listening()
    old = {"kind": "hello", "rank": 2, "host": "x", "run": ranks.endpoints}
    attacks = []
    for machine in (stranger, two[1]):
        argv = [sys.executable, "-c", ATTACK, ranks.endpoints[0], machine.address, 1000, json.dumps(old)]
        log = tmp_path / f"attack.{machine.name}"
        attacks.append((machine.start(argv, log, tmp_path), log))
    for process, log in attacks:
        while "done" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    ranks.start(2)
    ranks.wait_until_watched()
    ranks.end.write_text("end")
    assert ranks.codes(range(3), 60) == [0, 0, 0], ranks.text()
    assert ranks.text().split() == ["watched"] * 3


@pytest.mark.slow
def test_ranks_with_another_secret(two_machines, tmp_path):
    """The rank says it at once, the others when their time is over."""
    if two_machines[0].namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    ranks = Ranks(two_machines, tmp_path, absent=[2], LLM_NPU_RUN_SECRET=SECRET)
    ranks.start(2, LLM_NPU_RUN_SECRET=OTHER)
    assert ranks.codes([2], 60) == [2], ranks.text()
    other = f"cannot join rank 0 at 10.77.0.1:7000: {protocol.BAD_SECRET}"
    assert f"error: rank 2 on machine1 {other}" in ranks.logs[2].read_text()
    assert ranks.codes([0, 1], 90) == [75, 75], ranks.text()
    assert f"within 30 seconds: {protocol.BAD_SECRET}." in ranks.logs[0].read_text()
