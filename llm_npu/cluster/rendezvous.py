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
import sys
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import NamedTuple, NoReturn

from llm_npu.cluster import master
from llm_npu.core.errors import UserError
from llm_npu.core.machines import SECRET, secret

TIMEOUT = 600.0  # seconds, as torchrun's join_timeout
PROBE = 5.0  # seconds that the master gets to answer when time is over
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
    secret: str = ""  # of the run

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
    meeting = first, _number("the port of MASTER", port, 1, 65535)
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
    if rank == 0 and machines > 1 and (error := bind_error(*meeting)):
        raise UserError(
            f"port {port} of {host}, where the machines meet, cannot be used ({error}); end the program "
            "that has it, or give all machines a MASTER with another port."
        )
    return Place(machines, rank, meeting, host, limit, secret(given))


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


def launch(here: Place, arguments: list[str]) -> None:
    """Be Paddle's launcher, which ends the process: with exit code 2 where the machines have not met."""
    from paddle.distributed.launch import main
    from paddle.distributed.launch.context.args_envs import env_args_mapping
    from paddle.distributed.launch.controllers import master as paddles
    from paddle.distributed.launch.utils import kv_server

    for name, (
        option,
        _,
    ) in env_args_mapping.items():  # Paddle prefers them to the options, which are checked
        if option in ("master", "rank", "nnodes", "host"):
            os.environ.pop(name, None)
    # httpx, by which the launchers talk, would go to a proxy; Paddle leaves out those with lower-case names.
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = ",".join(filter(None, [direct, here.master[0]]))

    word = master.path_word(here.secret, f"{here.master[0]}:{here.master[1]}")

    class Master(paddles.HTTPMaster):
        """Its wait ends after ``here.timeout``, and at a signal: there are no ranks yet that it must end."""

        def lazy_init(self):
            super().lazy_init()
            self.client.endpoint += word
            tell, ask, get = self.client.put, self.client.get_prefix, self.client.get

            def told(key, value):
                done = tell(key, value)
                if not done and self._came and time.monotonic() - self._heard > master.GONE:
                    _refuse(_gone(here))
                return done

            def asked(prefix):
                answer = ask(prefix)
                if isinstance(answer, dict) and answer:
                    self._came, self._heard = answer, time.monotonic()
                return answer

            def got(key):
                answer = get(key)
                if answer == "error" and _has_another_secret(here, word):
                    _refuse(_other_secret(here))
                return answer

            self.client.put, self.client.get_prefix, self.client.get = told, asked, got

        def sync_peers(self, prefix, key, value, size, rank=-1):
            # The machines of the master's last answer, whose keys end with /NODE_RANK, and when it came.
            self._came, self._heard = {}, 0.0
            key = here.host  # a launcher that is started again takes the place of the first

            def end(number, frame):
                try:
                    to_master = http.client.HTTPConnection(*here.master, timeout=WITHDRAW)
                    to_master.request("DELETE", f"{word}{prefix}/{key}/{rank}")
                    to_master.getresponse()
                finally:  # also where nobody answers
                    _end(number, frame)

            handlers = {number: signal.signal(number, end) for number in SIGNALS}
            # Paddle also waits where it looks at no status: in connections, and for the master's port.
            limit = threading.Timer(
                here.timeout, lambda: _refuse(_late(here, master.machine_ranks(self._came)))
            )
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
                _refuse(_ambiguous(here, master.machine_ranks(self._came)))
            if peers[own] != value:
                _refuse(_have_met(here))
            return peers, own

    paddles.HTTPMaster = Master
    paddles.KVServer = master.server_class(kv_server, here.host, here.machines, word)
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


def _has_another_secret(here: Place, word: str) -> bool:
    to_master = http.client.HTTPConnection(*here.master, timeout=PROBE)
    try:
        to_master.request("GET", f"{word}/healthy")
        return to_master.getresponse().status == master.OTHER_SECRET
    except (OSError, http.client.HTTPException):
        return False
    finally:
        to_master.close()


def _other_secret(here: Place) -> str:
    own = f"another {SECRET} than" if here.secret else f"a {SECRET}, unlike"
    return (
        f"the launcher of the first machine, {here.master[0]}:{here.master[1]}, has {own} this machine; set "
        "the same on all machines."
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
    os.write(2, f"error: {sentence}\n".encode(errors="backslashreplace"))
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
