"""Paddle's launcher on one of several machines, with a timeout for the rendezvous.

    NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.1 python -m llm_npu.cluster.rendezvous \\
        --nproc_per_node 8 scripts/run_llama_npu.py

Accepts the arguments of ``paddle.distributed.launch``, whose --nnodes, --rank, --master and --host are set
from the variables. Paddle's own launcher waits forever for a missing machine, an unreachable master or a port
in use. Here each of these is an error with exit code 2, after at most RDZV_TIMEOUT seconds. The process is
Paddle's launcher itself, but its master listens only on the address in MASTER, and environment variables,
which can include keys and passwords, are not written to any log.
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
PROBE_TIMEOUT = 5.0  # seconds for the master to answer after the rendezvous has timed out
WITHDRAW_TIMEOUT = 1.0  # seconds for the master to remove a launcher ended by a signal
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONG_VARIABLES = ("TRAINER_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS")
DEBIAN = "127.0.1.1"  # address of the machine's own name in /etc/hosts on Debian and Ubuntu
OWN_NAME = (
    "; /etc/hosts may map a machine's name to such an address: enter its network interface's address there"
)
HOST = re.compile(r"[\w.-]{1,255}")  # a name, or an IPv4 address
VARIABLES = ("NNODES", "NODE_RANK", "MASTER", "HOST_IP")


class Place(NamedTuple):
    """This machine's place in the rendezvous.

    Attributes:
        machines: number of machines.
        rank: number of this machine.
        master: address and port of the master.
        host: address of this machine.
        timeout: seconds.
        secret: the run's secret, "" for none.
    """

    machines: int
    rank: int
    master: tuple[str, int]
    host: str
    timeout: float
    secret: str = ""

    @property
    def options(self) -> list[str]:
        """Options of ``paddle.distributed.launch``."""
        address, port = self.master
        return [
            *("--nnodes", str(self.machines), "--rank", str(self.rank)),
            *("--master", f"{address}:{port}", "--host", self.host),
        ]


def place(variables: Mapping[str, str]) -> Place:
    """Read the place from the variables. Raises UserError if the rendezvous could never succeed."""
    for name in VARIABLES:
        if not variables.get(name):
            raise UserError(f"{name} is not set; each machine needs NNODES, NODE_RANK, MASTER and HOST_IP")
    machines = _number("NNODES", variables["NNODES"], 1, 1 << 16)
    rank = _number("NODE_RANK", variables["NODE_RANK"], 0, machines - 1)
    host, (first, colon, port) = variables["HOST_IP"], variables["MASTER"].rpartition(":")
    if not colon or not HOST.fullmatch(first):
        raise UserError(f"MASTER is {variables['MASTER']!r}; accepted: the first machine's ADDRESS:PORT")
    endpoint = first, _number("the port of MASTER", port, 1, 65535)
    limit = _seconds(variables.get("RDZV_TIMEOUT") or str(TIMEOUT))
    if error := bind_error(host, 0):
        raise UserError(f"HOST_IP is {host}, which is not an IPv4 address of this machine ({error})")
    if machines > 1 and (unreachable := _unreachable(first, host)):
        raise UserError(f"{unreachable}, which no other machine can reach{OWN_NAME}, or specify it here")
    # Paddle's launcher starts the master only if HOST_IP is the address in MASTER.
    if rank == 0 and first != host:
        raise UserError(
            f"MASTER is {variables['MASTER']}, but HOST_IP of the first machine is {host}; use "
            f"MASTER={host}:PORT on all machines"
        )
    if rank > 0 and first == host:
        raise UserError(
            f"MASTER is {variables['MASTER']}, this machine's own address, but its NODE_RANK is {rank}; use "
            "the address of the machine with NODE_RANK 0" + (OWN_NAME if is_loopback(host) else "") + ""
        )
    # Paddle's launcher mistakes any program that listens on the port for the master.
    if rank == 0 and machines > 1 and (error := bind_error(*endpoint)):
        raise UserError(
            f"port {port} of {host} (MASTER) cannot be used ({error}); stop the program that uses it, or "
            "set MASTER to another port on all machines"
        )
    return Place(machines, rank, endpoint, host, limit, secret(variables))


def _unreachable(master: str, host: str) -> str:
    """Which of the two addresses no other machine can reach; "" if none is known to be unreachable.

    Two loopback addresses are accepted: they emulate several machines on one host.
    """
    if DEBIAN in (master, host) or is_loopback(master) != is_loopback(host):
        return f"MASTER is {master}" if is_loopback(master) and master != host else f"HOST_IP is {host}"
    return ""


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and low <= int(text[:9]) <= high):
        raise UserError(f"{name} is {text!r}; accepted: a whole number from {low} to {high}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise UserError(f"RDZV_TIMEOUT is {text!r}; accepted: a number of seconds, such as {TIMEOUT:g}")
    return seconds


def bind_error(address: str, port: int) -> str:
    """Why binding to the address fails; "" if it succeeds."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name with an empty or too long part
            return getattr(error, "strerror", None) or str(error)
    return ""


def launch(here: Place, arguments: list[str]) -> None:
    """Run Paddle's launcher, which exits: with code 2 if the rendezvous fails."""
    from paddle.distributed.launch import main
    from paddle.distributed.launch.context.args_envs import env_args_mapping
    from paddle.distributed.launch.controllers import master as paddle_master
    from paddle.distributed.launch.utils import kv_server

    # Paddle prefers these variables to the options, which are checked.
    for name, (option, _) in env_args_mapping.items():
        if option in ("master", "rank", "nnodes", "host"):
            os.environ.pop(name, None)
    # The launchers' httpx would use a proxy; Paddle removes only the variables with lower-case names.
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = ",".join(filter(None, [direct, here.master[0]]))

    prefix = master.path_prefix(here.secret, f"{here.master[0]}:{here.master[1]}")

    class Master(paddle_master.HTTPMaster):
        """Paddle's client of the master, with a timeout; a signal ends the process, as no rank runs yet."""

        def lazy_init(self):
            super().lazy_init()
            self.client.endpoint += prefix
            put, get_prefix, get = self.client.put, self.client.get_prefix, self.client.get

            def checked_put(key, value):
                done = put(key, value)
                silent = time.monotonic() - self._answered
                if not done and self._registered and silent > master.LAUNCHER_TIMEOUT:
                    _refuse(_master_exited(here))
                return done

            def recorded_get_prefix(path):
                answer = get_prefix(path)
                if isinstance(answer, dict) and answer:
                    self._registered, self._answered = answer, time.monotonic()
                return answer

            def checked_get(key):
                answer = get(key)
                if answer == "error" and _has_wrong_secret(here, prefix):
                    _refuse(_wrong_secret(here))
                return answer

            self.client.put, self.client.get_prefix = checked_put, recorded_get_prefix
            self.client.get = checked_get

        def sync_peers(self, path, key, value, size, rank=-1):
            # The master's last reply, with keys that end with /NODE_RANK, and its time.
            self._registered, self._answered = {}, 0.0
            key = here.host  # a restarted launcher replaces its predecessor

            def end(number, frame):
                try:
                    to_master = http.client.HTTPConnection(*here.master, timeout=WITHDRAW_TIMEOUT)
                    to_master.request("DELETE", f"{prefix}{path}/{key}/{rank}")
                    to_master.getresponse()
                finally:  # even if the master does not answer
                    _end(number, frame)

            handlers = {number: signal.signal(number, end) for number in SIGNALS}
            # A timer, because Paddle also blocks while it connects and while it waits for the master's port.
            limit = threading.Timer(
                here.timeout, lambda: _refuse(_timed_out(here, master.machine_ranks(self._registered)))
            )
            limit.daemon = True
            limit.start()
            try:
                peers, own = super().sync_peers(path, key, value, size, rank)
            except IndexError:
                peers, own = [None], 0
            finally:
                limit.cancel()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            if None in peers:
                _refuse(_duplicate_ranks(here, master.machine_ranks(self._registered)))
            if peers[own] != value:
                _refuse(_already_complete(here))
            return peers, own

    paddle_master.HTTPMaster = Master
    paddle_master.KVServer = master.server_class(kv_server, here.host, here.machines, prefix)
    _write_no_environment()
    sys.argv[1:] = [*here.options, *arguments]
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs two lines per second while waiting
    main.launch()


def _write_no_environment() -> None:
    """Keep Paddle's launcher from writing environment variables, keys and passwords included, to its logs.

    ``LONG_VARIABLES`` are still written: they can exceed the size limit of an environment variable, and ranks
    then read them from the file.
    """
    from paddle.distributed.launch.controllers.controller import Controller
    from paddle.distributed.launch.utils import process_context

    def dump(environment, file, **options):
        json.dump(
            {name: environment[name] for name in LONG_VARIABLES if name in environment}, file, **options
        )

    Controller.save_pod_log = lambda self, info: None
    Controller.save_pod_env = lambda self: None
    process_context.json = SimpleNamespace(dump=dump)


def _timed_out(here: Place, registered: list[int]) -> str:
    address, port = here.master
    if registered:
        missing = [str(rank) for rank in range(here.machines) if rank not in registered]
        if not missing:
            return _duplicate_ranks(here, registered)
        return (
            f"{len(registered)} of {here.machines} machines connected to {address}:{port} within "
            f"{here.timeout:g} seconds (RDZV_TIMEOUT); start the machine with NODE_RANK {', '.join(missing)} "
            "and check that it can reach that address."
        )
    try:
        socket.create_connection(here.master, PROBE_TIMEOUT).close()
        reason = "the program that answers there is not Paddle's launcher"
    except OSError as error:
        reason = error.strerror or str(error)
    return (
        f"no launcher answered at MASTER {address}:{port} within {here.timeout:g} seconds (RDZV_TIMEOUT): "
        f"{reason}; start the machine with NODE_RANK 0, and set MASTER to its address on all machines."
    )


def _has_wrong_secret(here: Place, prefix: str) -> bool:
    to_master = http.client.HTTPConnection(*here.master, timeout=PROBE_TIMEOUT)
    try:
        to_master.request("GET", f"{prefix}/healthy")
        return to_master.getresponse().status == master.WRONG_SECRET
    except (OSError, http.client.HTTPException):
        return False
    finally:
        to_master.close()


def _wrong_secret(here: Place) -> str:
    difference = "differs from" if here.secret else "is not set on"
    return (
        f"{SECRET} of the launcher at MASTER {here.master[0]}:{here.master[1]} {difference} this machine; "
        "set the same value on all machines."
    )


def _master_exited(here: Place) -> str:
    return (
        f"the launcher at MASTER {here.master[0]}:{here.master[1]} exited before all machines had connected; "
        "see its output."
    )


def _already_complete(here: Place) -> str:
    return (
        f"the rendezvous at {here.master[0]}:{here.master[1]} is already complete, with another launcher of "
        f"NODE_RANK {here.rank}; end the launchers of all machines, and start them again."
    )


def _duplicate_ranks(here: Place, registered: list[int]) -> str:
    return (
        f"the machines connected to {here.master[0]}:{here.master[1]} have the NODE_RANKs "
        f"{', '.join(map(str, registered))}; set unique numbers from 0 to {here.machines - 1} on "
        f"{here.machines} machines."
    )


def _end(number: int, frame: object) -> NoReturn:
    """Signal handler: exit with a shell's code. PID 1 of a container ignores signals without a handler."""
    os._exit(128 + number)


def _refuse(sentence: str) -> NoReturn:
    """Print the message and exit with code 2, from any thread."""
    logging.disable()  # the launcher's thread may still log
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
