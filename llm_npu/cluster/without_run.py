"""``llm-npu doctor --cluster HOSTFILE``, on every machine: compare the machines without a run.

Each machine starts this file as a program through Paddle's launcher, as a run would start its ranks. The
programs exchange their facts through Paddle's store, and write their result next to their log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import llm_npu
from llm_npu.cluster import comparison, rendezvous
from llm_npu.core import machines
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.doctor import Setup
from llm_npu.doctor import rank_table as rank_tables

ROOT = Path(llm_npu.__file__).parents[1]
PORT = 8090  # of the launchers' master, on the first machine
TIMEOUT = 120.0  # seconds until all machines have started
LARGEST = 1 << 20  # bytes of a hostfile
HOST = re.compile(r"[\w.:-]{1,255}")  # a name or an address
SHOWN = 80  # characters of a line
STORE_TIMEOUT = 60  # seconds that one machine waits for another in Paddle's store
COMPARING = 3 * STORE_TIMEOUT  # timeout of the comparison after the start
GRACE = 10.0  # seconds for the launcher to terminate its process
RESULT = "result"  # file with the result, in the folder of logs


def compare(hostfile: str, setup: Setup, timeout: float = TIMEOUT, rank_table: str | None = None) -> int:
    """Compare the machines: 0 if they can train together, 2 if they differ. The first prints the table.

    ``rank_table``: a file to which each machine writes HCCL's rank table of all machines. Raises UserError if
    the hostfile does not list this machine exactly once, or if a machine does not start within ``timeout``
    seconds.
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
    rendezvous.place(place)  # raises if the rendezvous cannot succeed
    others = ", ".join(address for address in addresses if address != addresses[number])
    print(f"waiting  up to {timeout:g} seconds for {others}", flush=True)
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", rendezvous.__name__, "--nproc_per_node", "1", "--log_dir", logs]
        command += [
            __file__,
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
            raise UserError(f"the comparison has not ended within {timeout + COMPARING:g} seconds") from None
        finally:
            _end(launcher)
        result = Path(logs, RESULT)
        if result.exists():
            print(result.read_text(encoding="utf-8"))
        elif log.exists():
            raise UserError(f"the comparison failed: {log.read_text(errors='replace')[-500:]}")
        else:
            last = own_log.read_text(errors="replace").strip().rpartition("\n")[2].removeprefix("error: ")
            last = last.replace("RDZV_TIMEOUT", "--timeout")
            raise UserError(f"of the machines in {hostfile}, the first with NODE_RANK 0: {last}")
    return launcher.returncode


def _end(launcher: subprocess.Popen) -> None:
    """End a launcher that is still waiting, and its process."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()


def _addresses(hostfile: str) -> list[str]:
    """The IPv4 addresses of the hosts in the file: one per line, by name or address; # starts a comment.

    In MPI's and DeepSpeed's files a host is followed by its number of devices (slots=8), which is ignored.
    """
    text = plain_json.text_of(hostfile, LARGEST)
    lines = [line.partition("#")[0].split() for line in text.split("\n")]
    for words in lines:
        host = not words or HOST.fullmatch(words[0])
        if not host or len(words) > 2 or (len(words) == 2 and not re.fullmatch(r"slots=\d+", words[1])):
            line = " ".join(words)[:SHOWN]
            raise UserError(f"{hostfile} has the line {line!r}; accepted: HOST, or HOST slots=8")
    hosts = [words[0] for words in lines if words]
    if len(hosts) < 2:
        raise UserError(f"{hostfile} names {len(hosts)} host(s); use two or more, one per line")
    addresses = []
    for host in hosts:
        try:
            addresses.append(socket.gethostbyname(host))
        except (OSError, UnicodeError):  # UnicodeError: a part of the name is empty or too long
            raise UserError(f"{hostfile} names {host}, which has no IPv4 address here") from None
        if rendezvous.is_loopback(addresses[-1]) and host != addresses[-1]:
            raise UserError(
                f"{hostfile} names {host}, which is {addresses[-1]} here, where no other machine can reach it"
                f"{rendezvous.OWN_NAME}, or into {hostfile}"
            )
    return addresses


def _own(addresses: list[str], hostfile: str) -> int:
    own = [number for number, address in enumerate(addresses) if not rendezvous.bind_error(address, 0)]
    if not own:
        raise UserError(
            f"{hostfile} lists {', '.join(addresses)}, none of them an address of this machine; run the "
            "command on machines of the file only"
        )
    if len(own) > 1:
        raise UserError(
            f"{len(own)} of the addresses in {hostfile} ({', '.join(addresses)}) are of this machine; name "
            "each machine once"
        )
    return own[0]


def compare_rank(device: str, output_dir: str, root: str, logs: str, rank_table: str = "") -> int:
    """Run the comparison on this machine; returns the exit code."""
    here = machines.read()
    setup = Setup(os.environ, device_name=device, output_dir=Path(output_dir), root=Path(root))
    own = comparison.gather(setup, {})
    facts = _exchange(here.rank, len(here.all), own)
    by_name = comparison.by_name(here.all, facts)
    table = comparison.table(by_name)
    result = f"these machines differ:\n{table}" if table else comparison.note(by_name)
    if here.rank > 0 and table:
        result = f"these machines differ; the table is on {here.all[0].address}"
    problems = []
    if rank_table and not table:
        servers = {machine.address: own.cards for machine, own in zip(here.all, facts, strict=True)}
        problems = rank_tables.write(Path(rank_table), servers)
        result += f"\n{_rank_table_result(rank_table, problems)}"
    Path(logs, RESULT).write_text(result, encoding="utf-8", errors="backslashreplace")
    return 2 if table or problems else 0


def _rank_table_result(file: str, problems: list[str]) -> str:
    if problems:
        fix = f"set the addresses by `hccn_tool -i DEVICE -ip -s address A netmask M` (/{rank_tables.HCCN})"
        return f"error: no rank table was written, since {problems[0]}; {fix}."
    return "{1} ranks on {0} servers are in {2}".format(*rank_tables.counts(file), file)


def _exchange(rank: int, count: int, own: comparison.Facts) -> list[comparison.Facts]:
    """Exchange the facts of all machines through Paddle's store, which exits with rank 0."""
    from paddle.base import core

    host, _, port = os.environ["PADDLE_MASTER"].rpartition(":")
    store = core.TCPStore(host, int(port), rank == 0, count, timeout=STORE_TIMEOUT)

    def of_all(what: str) -> list[bytes]:
        return [store.get(f"{what}{other}") for other in range(count)]

    store.set(f"here{rank}", "1")
    of_all("here")  # read the clocks at the same time
    store.set(f"facts{rank}", json.dumps(asdict(own.now())))
    texts = of_all("facts")
    store.set(f"done{rank}", "1")
    if rank == 0:
        of_all("done")
    return [comparison.Facts(**json.loads(text)) for text in texts]


if __name__ == "__main__":
    sys.exit(compare_rank(*sys.argv[1:]))
