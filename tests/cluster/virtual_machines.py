"""Several machines on this host, for runs that ``paddle.distributed.launch`` starts on each of them.

With the rights for it a machine is a network namespace with an interface, an address and a hostname of its
own, and a bridge is the network between them. Without, it is an address of the loopback interface, whose
cable cannot be pulled. Memory, processes and files are the host's, but for folders that a machine is given as
disks of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ranks import SOURCES

import paddle_fused
from virtual_npu.activation import SITE_FOLDER

ROOT = Path(paddle_fused.__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts/run_llama_npu.py"
# A search path with this environment's Python, whether or not it is active.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PORT = 8090  # of the launchers' master; every namespace has its own ports
# Sets the machine's name; then the program takes the place of this process.
_NAMED = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"
_MOUNTED = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"']


@dataclass
class Machine:
    """``name`` is the hostname, ``address`` an IPv4 address, ``namespace`` None on the loopback interface.

    ``disks``: {folder: what is there on this machine}, in a namespace; all other files are the host's.
    """

    name: str
    address: str
    namespace: str | None = None
    interface: str = "lo"
    cable: str | None = None  # the host's end of the interface
    disks: dict[Path, Path] = field(default_factory=dict)
    started: list[subprocess.Popen] = field(default_factory=list)

    def start(self, argv: Sequence, log: Path, cwd: Path, **environment: str | None) -> subprocess.Popen:
        """Starts a program on this machine, its output in ``log``; None takes a variable out."""
        within = []
        if self.namespace is not None:
            within = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
            for folder, disk in self.disks.items():
                within += [*_MOUNTED, str(disk), str(folder)]
            within += [sys.executable, "-c", _NAMED, self.name]
        cwd.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*within, *map(str, argv)],
                env=_environment(environment),
                cwd=cwd,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def processes(self) -> list[int]:
        """The process ids of all that runs on this machine."""
        if self.namespace is not None:
            listed = _ip("netns", "pids", self.namespace)
            return [int(word) for word in listed.split()]
        return [pid for process in self.started if process.poll() is None for pid in tree(process.pid)]

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to everything that runs on this machine."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def take_interface_down(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.interface, "down")

    def take_interface_up(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.interface, "up")

    def leave_the_bridge(self) -> None:
        """Cuts the machine off from the others; its own interface stays up."""
        _ip("link", "set", self.cable, "nomaster")

    def lose_network(self) -> None:
        """Takes the machine's interface away for good, as the end of its namespace does."""
        _ip("-n", self.namespace, "link", "delete", self.interface)

    def end(self) -> None:
        """Kills everything that was started here, and waits for its end."""
        self.signal_all(signal.SIGKILL)
        for process in self.started:
            process.wait()


def namespaces_are_allowed() -> bool:
    """Whether this process may make network namespaces with iproute2."""
    name = f"pf{os.getpid()}t"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    _ip("netns", "delete", name)
    return True


@contextmanager
def machines(count: int, loopback: bool = False) -> Iterator[list[Machine]]:
    """``count`` machines, which end with all their processes; by namespaces where these are allowed."""
    if loopback or not namespaces_are_allowed():
        hosts = [Machine(socket.gethostname(), f"127.0.0.{number + 1}") for number in range(count)]
        with ExitStack() as stack:
            for machine in hosts:
                stack.callback(machine.end)
            yield hosts
        return
    prefix = f"pf{os.getpid()}"
    with ExitStack() as stack:
        bridge = f"{prefix}b"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", bridge)
        _ip("link", "set", bridge, "up")
        hosts = []
        names = {f"10.77.0.{number + 1}": f"machine{number}" for number in range(count)}
        for number, (address, name) in enumerate(names.items()):
            machine = Machine(name, address, f"{prefix}m{number}", "eth0", f"{prefix}v{number}")
            stack.enter_context(_namespace(machine, bridge, names))
            hosts.append(machine)
        yield hosts


@contextmanager
def _namespace(machine: Machine, bridge: str, names: Mapping[str, str]) -> Iterator[None]:
    space, cable = machine.namespace, machine.cable
    # ip netns exec shows these files in the place of those in /etc.
    files = Path("/etc/netns") / space
    files.mkdir(parents=True)
    hosts = {"127.0.0.1": "localhost"} | names
    (files / "hosts").write_text("".join(f"{address} {name}\n" for address, name in hosts.items()))
    _ip("netns", "add", space)
    try:
        _ip("link", "add", cable, "type", "veth", "peer", "name", machine.interface, "netns", space)
        _ip("link", "set", cable, "master", bridge, "up")
        _ip("-n", space, "address", "add", f"{machine.address}/24", "dev", machine.interface)
        for interface in ("lo", machine.interface):
            _ip("-n", space, "link", "set", interface, "up")
        yield
    finally:
        machine.end()
        # The kernel keeps a deleted namespace, with its end of the cable, as long as one of its connections
        # waits for an answer that a cut network will not bring.
        with suppress(subprocess.CalledProcessError):  # the machine has lost its network
            _ip("link", "delete", cable)
        _ip("netns", "delete", space)
        (files / "hosts").unlink()
        files.rmdir()


@dataclass
class Job:
    """The launchers of a run on several machines: ``processes`` in the order of ``machines``.

    ``logs`` is the folder of their output: ``launcher.<machine>`` and, in ``<machine>``, Paddle's logs of the
    ranks.
    """

    machines: list[Machine]
    processes: list[subprocess.Popen]
    logs: Path

    def wait(self, timeout: float) -> list[int]:
        """The exit codes of the launchers; AssertionError with the ends of all logs if it takes longer."""
        end = time.monotonic() + timeout
        codes = []
        for number, process in enumerate(self.processes):
            try:
                codes.append(process.wait(max(0.0, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"machine {number} has not ended within {timeout} s\n{self.text()}"
                ) from None
        return codes

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> None:
        """Returns when ``condition`` holds; AssertionError if a launcher ends before or time is up."""
        end = time.monotonic() + timeout
        while not condition():
            ended = [number for number, process in enumerate(self.processes) if process.poll() is not None]
            assert not ended and time.monotonic() < end, f"ended: {ended}\n{self.text()}"
            time.sleep(0.05)

    def text(self, characters: int = 4000) -> str:
        """The ends of all logs."""
        files = sorted(
            file for file in self.logs.rglob("*") if file.name.startswith(("launcher.", "workerlog."))
        )
        return "\n".join(
            f"---- {file.relative_to(self.logs)} ----\n{file.read_text(errors='replace')[-characters:]}"
            for file in files
        )


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(descendant for child in children for descendant in tree(int(child)))]


def launch(
    on: Sequence[Machine],
    arguments: Sequence,
    folder: Path,
    *,
    ranks: int = 2,
    options: Sequence = (),
    script: Path = SCRIPT,
    environments: Sequence[Mapping[str, str | None]] = (),
    own_arguments: Sequence[Sequence] = (),
    **environment: str | None,
) -> Job:
    """``python -m paddle.distributed.launch`` with ``ranks`` ranks on each of these machines.

    ``arguments`` are the script's, ``options`` more of the launcher's. ``environments`` are added to
    ``environment``, and ``own_arguments`` to ``arguments``, on one machine each. The working
    folder of a machine is ``folder/<its number>``.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    processes = []
    for number, machine in enumerate(on):
        own = dict(environments[number]) if environments else {}
        argv = [sys.executable, "-m", "paddle.distributed.launch"]
        argv += ["--nnodes", str(len(on)), "--master", f"{on[0].address}:{PORT}", "--host", machine.address]
        argv += ["--rank", str(number), "--nproc_per_node", str(ranks), "--log_dir", logs / str(number)]
        argv += [*options, script, *arguments, *(own_arguments[number] if own_arguments else ())]
        log = logs / f"launcher.{number}"
        processes.append(machine.start(argv, log, folder / str(number), **{**environment, **own}))
    return Job(list(on), processes, logs)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """As it is for somebody who has not activated the virtual NPU, which the pytest process has."""
    active = ("PADDLE_", "FLAGS_", "VIRTUAL_NPU_", "CUSTOM_DEVICE_ROOT")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(active)}
    entries = [*SOURCES, *inherited.get("PYTHONPATH", "").split(os.pathsep)]
    search = [entry for entry in dict.fromkeys(entries) if entry and entry != str(SITE_FOLDER)]
    merged = {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(search), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
