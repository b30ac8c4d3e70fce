"""``python -m llm_npu.doctor --cluster HOSTFILE``, on every machine: compare the machines without a run.

Each starts one process by Paddle's launcher, as a run would; these exchange their facts by Paddle's store.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import llm_npu
from llm_npu.core.errors import UserError

from . import comparing_process

ROOT = Path(llm_npu.__file__).parents[1]
PORT = 8090  # of the launchers' master, on the first machine
TIMEOUT = 120.0  # seconds, until all machines have come and are compared
GRACE = 10.0  # seconds that the launcher gets to end its process


def compare(hostfile: str, device: str, output_dir: Path) -> int:
    """The exit code: 0 for machines that may train together, 2 for others, of which the first prints a table.

    UserError if this machine is not in the file once, and if not all have come within ``TIMEOUT``.
    """
    addresses = _addresses(hostfile)
    number = _own(addresses, hostfile)
    if number == 0:
        _check_port(addresses[0])
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", "paddle.distributed.launch", "--nnodes", str(len(addresses))]
        command += ["--master", f"{addresses[0]}:{PORT}", "--host", addresses[number], "--rank", str(number)]
        command += ["--nproc_per_node", "1", "--log_dir", logs]
        command += [comparing_process.__file__, device, str(output_dir), logs]
        quiet, path = subprocess.DEVNULL, [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        launcher = subprocess.Popen(
            command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            launcher.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"not all {len(addresses)} machines of {hostfile} have come within {TIMEOUT:g} seconds; run "
                f"the same command on each of them, and let them reach {addresses[0]}:{PORT}."
            ) from None
        finally:
            _end(launcher)
        said = Path(logs, comparing_process.SAID)
        if not said.exists():
            log = Path(logs, "workerlog.0")
            raise UserError(f"the comparison failed: {log.read_text()[-500:] if log.exists() else 'no log'}")
        print(said.read_text())
    return launcher.returncode


def _end(launcher: subprocess.Popen) -> None:
    """End a launcher that still waits, and its process with it."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()


def _check_port(address: str) -> None:
    """UserError if another program has the master's port: the launcher would take it for the master."""
    with socket.socket() as master:
        master.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            master.bind((address, PORT))
        except OSError as error:
            raise UserError(
                f"port {PORT} of {address}, where the machines meet, cannot be used ({error.strerror}); end "
                "the program that has it."
            ) from None


def _addresses(hostfile: str) -> list[str]:
    """The IPv4 addresses of the hosts in the file: one a line, by name or address; # begins a comment.

    MPI's and DeepSpeed's files say the number of devices after a host (slots=8), which is not needed here.
    """
    lines = [line.partition("#")[0].split() for line in Path(hostfile).read_text().splitlines()]
    for words in lines:
        if len(words) > 2 or (len(words) == 2 and not re.fullmatch(r"slots=\d+", words[1])):
            raise UserError(f"{hostfile} has the line {' '.join(words)!r}; accepted: HOST, or HOST slots=8.")
    hosts = [words[0] for words in lines if words]
    if len(hosts) < 2:
        raise UserError(f"{hostfile} names {len(hosts)} host(s); give two or more, one a line.")
    found = []
    for host in hosts:
        try:
            found.append(socket.gethostbyname(host))
        except OSError:
            raise UserError(f"{hostfile} names {host}, which has no IPv4 address here.") from None
    return found


def _own(addresses: list[str], hostfile: str) -> int:
    own = [number for number, address in enumerate(addresses) if _is_here(address)]
    if len(own) != 1:
        raise UserError(
            f"{len(own)} of the addresses in {hostfile} ({', '.join(addresses)}) are of this machine; name "
            "each machine once, and run the command on these only."
        )
    return own[0]


def _is_here(address: str) -> bool:
    with socket.socket() as any_port:
        try:
            any_port.bind((address, 0))
        except OSError:
            return False
    return True
