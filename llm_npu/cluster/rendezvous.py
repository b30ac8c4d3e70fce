"""Paddle's launcher on one of several machines, with a limit to its wait for the others.

    NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.1 python -m llm_npu.cluster.rendezvous \\
        --nproc_per_node 8 scripts/run_llama_npu.py

The arguments are those of ``paddle.distributed.launch``; its --nnodes, --rank, --master and --host are the
variables. Paddle's launcher waits without end for a machine that does not come, for a master that is not
there, and for a port that another program has. Here each of these is a sentence and exit code 2, after
RDZV_TIMEOUT seconds where only time can tell. The process is Paddle's launcher itself; but its master listens
on the address in MASTER only, and the environment, keys and passwords included, is written to no log.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import re
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import NamedTuple, NoReturn

from llm_npu.core.errors import UserError

TIMEOUT = 600.0  # seconds, as torchrun's join_timeout
PROBE = 5.0  # seconds that the master gets to answer when time is over
GONE = 10.0  # seconds without a word after which a launcher that had been heard of has ended
WITHDRAW = 1.0  # seconds that the master gets to forget a launcher that a signal ends
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONG = ("TRAINER_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS")
DEBIAN = "127.0.1.1"  # of a machine's own name, in /etc/hosts of Debian and Ubuntu
OWN_NAME = (
    "; /etc/hosts of a machine may give its own name such an address: put that of its network interface there"
)
HOST = re.compile(r"[\w.-]{1,255}")  # a name, or an IPv4 address
VARIABLES = ("NNODES", "NODE_RANK", "MASTER", "HOST_IP")


class Place(NamedTuple):
    """This machine's place: its number of ``machines``, its ``host`` address, the master's, and the limit."""

    machines: int
    rank: int
    master: tuple[str, int]
    host: str
    timeout: float  # seconds

    @property
    def options(self) -> list[str]:
        """Of ``paddle.distributed.launch``."""
        address, port = self.master
        return [
            *("--nnodes", str(self.machines), "--rank", str(self.rank)),
            *("--master", f"{address}:{port}", "--host", self.host),
        ]


def place(given: Mapping[str, str]) -> Place:
    """What the variables say; UserError where machines with these could never meet."""
    for name in VARIABLES:
        if not given.get(name):
            raise UserError(f"{name} is not set; each machine needs NNODES, NODE_RANK, MASTER and HOST_IP.")
    machines = _number("NNODES", given["NNODES"], 1, 1 << 16)
    rank = _number("NODE_RANK", given["NODE_RANK"], 0, machines - 1)
    host, (first, colon, port) = given["HOST_IP"], given["MASTER"].rpartition(":")
    if not colon or not HOST.fullmatch(first):
        raise UserError(f"MASTER is {given['MASTER']!r}; accepted: the first machine's ADDRESS:PORT.")
    master = first, _number("the port of MASTER", port, 1, 65535)
    limit = _seconds(given.get("RDZV_TIMEOUT") or str(TIMEOUT))
    if error := bind_error(host, 0):
        raise UserError(f"HOST_IP is {host}, which is no IPv4 address of this machine ({error}).")
    if machines > 1 and (alone := _alone(first, host)):
        raise UserError(f"{alone}, which no other machine can reach{OWN_NAME}, or give it here.")
    # Paddle's launcher serves the others where HOST_IP is the address in MASTER.
    if rank == 0 and first != host:
        raise UserError(
            f"MASTER is {given['MASTER']}, but HOST_IP of the first machine is {host}; give "
            f"MASTER={host}:PORT to all."
        )
    if rank > 0 and first == host:
        raise UserError(
            f"MASTER is {given['MASTER']}, this machine's own address, but its NODE_RANK is {rank}; give "
            "the address of the machine with NODE_RANK 0" + (OWN_NAME if is_loopback(host) else "") + "."
        )
    # It takes any program that has the port for the master.
    if rank == 0 and machines > 1 and (error := bind_error(*master)):
        raise UserError(
            f"port {port} of {host}, where the machines meet, cannot be used ({error}); end the program "
            "that has it, or give all machines a MASTER with another port."
        )
    return Place(machines, rank, master, host, limit)


def _alone(master: str, host: str) -> str:
    """Which of the two addresses no other machine can reach; "" if neither is known to be such a one.

    Of two loopback addresses a user may know what they are for: machines that are tried on one host.
    """
    if DEBIAN in (master, host) or is_loopback(master) != is_loopback(host):
        return f"MASTER is {master}" if is_loopback(master) and master != host else f"HOST_IP is {host}"
    return ""


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _number(name: str, given: str, low: int, high: int) -> int:
    if not (given.isascii() and given.isdecimal() and low <= int(given[:9]) <= high):
        raise UserError(f"{name} is {given!r}; accepted: a whole number from {low} to {high}.")
    return int(given)


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise UserError(f"RDZV_TIMEOUT is {given!r}; accepted: a number of seconds, such as {TIMEOUT:g}.")
    return seconds


def bind_error(address: str, port: int) -> str:
    """Why no program could listen there now; "" if one could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name with an empty or too long part
            return getattr(error, "strerror", None) or str(error)
    return ""


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
        now = time.monotonic()
        if self.get(key) != value:
            self._last = now
        super().__setitem__(key, value)
        self._told[key] = now
        for other in [each for each, told in self._told.items() if now - told > GONE]:
            del self[other]
        complete = len(set(_ranks(self._told))) == len(self._told) == self._machines
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


def launch(here: Place, arguments: list[str]) -> None:
    """Be Paddle's launcher, which ends the process: with exit code 2 where the machines have not met."""
    from paddle.distributed.launch import main
    from paddle.distributed.launch.context.args_envs import env_args_mapping
    from paddle.distributed.launch.controllers import master

    for name, (
        option,
        _,
    ) in env_args_mapping.items():  # Paddle prefers them to the options, which are checked
        if option in ("master", "rank", "nnodes", "host"):
            os.environ.pop(name, None)
    # httpx, by which the launchers talk, would go to a proxy; Paddle leaves out those with lower-case names.
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = ",".join(filter(None, [direct, here.master[0]]))

    class Master(master.HTTPMaster):
        """Its wait ends after ``here.timeout``, and at a signal: there are no ranks yet that it must end."""

        def lazy_init(self):
            super().lazy_init()
            tell, ask = self.client.put, self.client.get_prefix

            def told(key, value):
                done = tell(key, value)
                if not done and self._came and time.monotonic() - self._heard > GONE:
                    _refuse(_gone(here))
                return done

            def asked(prefix):
                answer = ask(prefix)
                if isinstance(answer, dict) and answer:
                    self._came, self._heard = answer, time.monotonic()
                return answer

            self.client.put, self.client.get_prefix = told, asked

        def sync_peers(self, prefix, key, value, size, rank=-1):
            # The machines of the master's last answer, whose keys end with /NODE_RANK, and when it came.
            self._came, self._heard = {}, 0.0
            key = here.host  # a launcher that is started again takes the place of the first

            def end(number, frame):
                try:
                    to_master = http.client.HTTPConnection(*here.master, timeout=WITHDRAW)
                    to_master.request("DELETE", f"{prefix}/{key}/{rank}")
                    to_master.getresponse()
                finally:  # also where nobody answers
                    _end(number, frame)

            handlers = {number: signal.signal(number, end) for number in SIGNALS}
            # Paddle also waits where it looks at no status: in connections, and for the master's port.
            limit = threading.Timer(here.timeout, lambda: _refuse(_late(here, _ranks(self._came))))
            limit.daemon = True
            limit.start()
            try:
                peers, own = super().sync_peers(prefix, key, value, size, rank)
            except IndexError:
                peers, own = [None], 0
            finally:
                limit.cancel()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            if None in peers:
                _refuse(_ambiguous(here, _ranks(self._came)))
            if peers[own] != value:
                _refuse(_have_met(here))
            return peers, own

    class Server(master.KVServer):
        """Listens on this machine's address, not on all of them, and forgets launchers that have ended."""

        def __init__(self, port):
            super().__init__(port)
            self.kv = Register(here.machines, self.kv)

        def server_bind(self):
            self.server_address = here.host, self.server_address[1]
            socketserver.TCPServer.server_bind(self)  # HTTPServer's asks for the address's name as well

    master.HTTPMaster, master.KVServer = Master, Server
    _write_no_environment()
    sys.argv[1:] = [*here.options, *arguments]
    logging.getLogger("httpx").setLevel(logging.WARNING)  # two lines a second during the wait
    main.launch()


def _write_no_environment() -> None:
    """Paddle's launcher writes all variables, keys and passwords included, beside the logs.

    A rank reads only those back that are too long for a process; their file stays.
    """
    from paddle.distributed.launch.controllers.controller import Controller
    from paddle.distributed.launch.utils import process_context

    def dump(environment, file, **options):
        json.dump({name: environment[name] for name in LONG if name in environment}, file, **options)

    Controller.save_pod_log = lambda self, info: None
    Controller.save_pod_env = lambda self: None
    process_context.json = SimpleNamespace(dump=dump)


def _ranks(came: Iterable[str]) -> list[int]:
    return sorted(int(key.rpartition("/")[2]) for key in came)


def _late(here: Place, came: list[int]) -> str:
    address, port = here.master
    if came:
        missing = [str(rank) for rank in range(here.machines) if rank not in came]
        if not missing:
            return _ambiguous(here, came)
        return (
            f"{len(came)} of {here.machines} machines have come to {address}:{port} within {here.timeout:g} "
            f"seconds (RDZV_TIMEOUT); start the machine with NODE_RANK {', '.join(missing)}, too, and let it "
            "reach that address."
        )
    try:
        socket.create_connection(here.master, PROBE).close()
        why = "what answers there is not Paddle's launcher"
    except OSError as error:
        why = error.strerror or str(error)
    return (
        f"no launcher has answered at MASTER {address}:{port} within {here.timeout:g} seconds "
        f"(RDZV_TIMEOUT): {why}; start the machine with NODE_RANK 0, and give its address to all."
    )


def _gone(here: Place) -> str:
    return (
        f"the launcher of the first machine, {here.master[0]}:{here.master[1]}, has ended before all "
        "machines had come; its output says why."
    )


def _have_met(here: Place) -> str:
    return (
        f"the machines have met at {here.master[0]}:{here.master[1]} already, with another launcher of "
        f"NODE_RANK {here.rank}; end the launchers of all machines, and start them again."
    )


def _ambiguous(here: Place, came: list[int]) -> str:
    return (
        f"the machines that have come to {here.master[0]}:{here.master[1]} have the NODE_RANKs "
        f"{', '.join(map(str, came))}; give {here.machines} machines the numbers from 0 to "
        f"{here.machines - 1}, each once."
    )


def _end(number: int, frame: object) -> NoReturn:
    """Of a signal: its exit code in a shell. A container's first process ignores signals without handlers."""
    os._exit(128 + number)


def _refuse(sentence: str) -> NoReturn:
    """The sentence and exit code 2, from any thread."""
    logging.disable()  # of what the launcher's thread says meanwhile
    os.write(2, f"error: {sentence}\n".encode())
    os._exit(2)


def main(arguments: list[str]) -> None:
    for number in SIGNALS:
        signal.signal(number, _end)
    try:
        here = place(os.environ)
    except UserError as error:
        _refuse(str(error))
    launch(here, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
