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
from llm_npu.core.untrusted import plain_json
from llm_npu.doctor import Setup

from . import comparing_process, rendezvous

ROOT = Path(llm_npu.__file__).parents[1]
PORT = 8090  # of the launchers' master, on the first machine
TIMEOUT = 120.0  # seconds until all machines have come
LARGEST = 1 << 20  # bytes of a hostfile
HOST = re.compile(r"[\w.:-]{1,255}")  # a name or an address
SHOWN = 80  # characters of a line
COMPARING = 3 * comparing_process.TIMEOUT  # seconds from then on
GRACE = 10.0  # seconds that the launcher gets to end its process


def compare(hostfile: str, setup: Setup, timeout: float = TIMEOUT, rank_table: str | None = None) -> int:
    """The exit code: 0 for machines that may train together, 2 for others, of which the first prints a table.

    ``rank_table``: a file into which each machine writes HCCL's rank table of them all.
    UserError if this machine is not in the file once, and if not all have come within ``timeout`` seconds.
    """
    addresses = _addresses(hostfile)
    number = _own(addresses, hostfile)
    place = {
        "NNODES": str(len(addresses)),
        "NODE_RANK": str(number),
        "MASTER": f"{addresses[0]}:{PORT}",
        "HOST_IP": addresses[number],
        "RDZV_TIMEOUT": str(timeout),
    }
    rendezvous.place(place)  # raises where they could never meet
    others = ", ".join(address for address in addresses if address != addresses[number])
    print(f"waiting  up to {timeout:g} seconds for {others}", flush=True)
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", rendezvous.__name__, "--nproc_per_node", "1", "--log_dir", logs]
        command += [
            comparing_process.__file__,
            setup.device_name,
            str(setup.output_dir),
            str(setup.root),
            logs,
        ]
        command += [rank_table] if rank_table else []
        path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **place, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        own_log, log = Path(logs, "launcher"), Path(logs, "workerlog.0")
        with own_log.open("wb") as file:
            launcher = subprocess.Popen(
                list(map(str, command)), env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            launcher.wait(timeout + COMPARING)
        except subprocess.TimeoutExpired:
            raise UserError(f"the comparison has not ended within {timeout + COMPARING:g} seconds.") from None
        finally:
            _end(launcher)
        said = Path(logs, comparing_process.SAID)
        if said.exists():
            print(said.read_text(encoding="utf-8"))
        elif log.exists():
            raise UserError(f"the comparison failed: {log.read_text(errors='replace')[-500:]}")
        else:
            last = own_log.read_text(errors="replace").strip().rpartition("\n")[2].removeprefix("error: ")
            last = last.replace("RDZV_TIMEOUT", "--timeout")
            raise UserError(f"of the machines in {hostfile}, the first with NODE_RANK 0: {last}")
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


def _addresses(hostfile: str) -> list[str]:
    """The IPv4 addresses of the hosts in the file: one a line, by name or address; # begins a comment.

    MPI's and DeepSpeed's files say the number of devices after a host (slots=8), which is not needed here.
    """
    text = plain_json.text_of(hostfile, LARGEST)
    lines = [line.partition("#")[0].split() for line in text.split("\n")]
    for words in lines:
        host = not words or HOST.fullmatch(words[0])
        if not host or len(words) > 2 or (len(words) == 2 and not re.fullmatch(r"slots=\d+", words[1])):
            line = " ".join(words)[:SHOWN]
            raise UserError(f"{hostfile} has the line {line!r}; accepted: HOST, or HOST slots=8.")
    hosts = [words[0] for words in lines if words]
    if len(hosts) < 2:
        raise UserError(f"{hostfile} names {len(hosts)} host(s); give two or more, one a line.")
    found = []
    for host in hosts:
        try:
            found.append(socket.gethostbyname(host))
        except (OSError, UnicodeError):  # UnicodeError: a part of the name is empty or too long
            raise UserError(f"{hostfile} names {host}, which has no IPv4 address here.") from None
        if rendezvous.is_loopback(found[-1]) and host != found[-1]:
            raise UserError(
                f"{hostfile} names {host}, which is {found[-1]} here, where no other machine can reach it"
                f"{rendezvous.OWN_NAME}, or into {hostfile}."
            )
    return found


def _own(addresses: list[str], hostfile: str) -> int:
    own = [number for number, address in enumerate(addresses) if not rendezvous.bind_error(address, 0)]
    if not own:
        raise UserError(
            f"{hostfile} names {', '.join(addresses)}, none of which is an address of this machine; run the "
            "command on the machines of the file only."
        )
    if len(own) > 1:
        raise UserError(
            f"{len(own)} of the addresses in {hostfile} ({', '.join(addresses)}) are of this machine; name "
            "each machine once."
        )
    return own[0]
