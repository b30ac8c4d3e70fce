"""The facts of a machine (versions, code, variables, clock, memory, disk), and the table of differences.

Importing this module imports no framework.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import llm_npu
import paddle_fused
import virtual_npu
from llm_npu.core.machines import Machine
from llm_npu.core.untrusted.plain_text import printable
from llm_npu.doctor import Setup, rank_table
from llm_npu.doctor.checks import ascend, hccl, packages, resources
from llm_npu.models import library
from llm_npu.report.table import aligned, shortened

COMPARED = ("HCCL_", "ASCEND_", "FLAGS_", "VIRTUAL_NPU_", "PADDLE_FUSED_")
# A machine's own addresses, cards, folders and logs.
OF_ONE_MACHINE = re.compile(
    r"HCCL_IF_IP|HCCL_SOCKET_IFNAME|FLAGS_selected_\w+|FLAGS_npus|ASCEND_DEVICE_ID"
    r"|ASCEND_(RT_)?VISIBLE_DEVICES"  # Kubernetes' device plugin writes them in any order
    r"|VIRTUAL_NPU_(JOURNAL|TRACE|QUIET)|\w+_(HOME|PATH|DIR|FILE)|FLAGS_\w+_dir"
    r"|VIRTUAL_NPU_CANN"  # compared as a separate fact
)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
REPORTED = ("OMP_NUM_THREADS",)  # depends on the number of cores
SUBNET = "the subnet of HCCL's first connections"
UNSET, NOT_INSTALLED = "not set", "not installed"
CLOCK = 60.0  # maximum clock difference in seconds, for comparable log and file dates
GIB = 2**30
NAMED = 4  # machines listed for one value; of others, only the number
SHOWN = 60  # characters of a value
HASH = 12  # characters of a hash


@dataclass(frozen=True)
class Facts:
    """What one machine reports about itself.

    Attributes:
        equal: name -> value of facts that must be equal on all machines.
        reported: name -> value of facts that may differ.
        cards: device -> its address in the devices' network, or "".
        clock: seconds since 1970.
        memory: free bytes of the host, None if unknown.
        disk: free bytes of the output folder's disk.
    """

    host: str
    equal: Mapping[str, str]
    reported: Mapping[str, str]
    cards: Mapping[str, str]
    clock: float
    memory: int | None
    disk: int

    def now(self) -> Facts:
        """A copy with the current clock."""
        return replace(self, clock=time.time())


def gather(setup: Setup, of_run: Mapping[str, object]) -> Facts:
    """Gather the facts of this machine. ``of_run``: values that must be equal."""
    equal = {**versions(setup), **variables(setup.environ)}
    equal |= {name: str(value) for name, value in of_run.items()}
    reported = {name: setup.environ[name] for name in REPORTED if name in setup.environ}
    reported[SUBNET] = hccl.subnet(setup.environ) or "unknown"  # routers may connect several
    return Facts(
        host=socket.gethostname(),
        equal=equal,
        reported=reported,
        cards=rank_table.addresses(setup.root, setup.environ.get("ASCEND_RT_VISIBLE_DEVICES")),
        clock=time.time(),
        memory=resources.available_memory(setup.root),
        disk=shutil.disk_usage(_existing(setup.output_dir)).free,
    )


def versions(setup: Setup) -> dict[str, str]:
    """The device's kind, versions of packages, CANN and driver, and a hash of this project's code."""
    models = library.installed_or_none()
    distributions = [
        packages.PROJECT,
        "paddlepaddle",
        ascend.PLUGIN,
        "numpy",
        "tokenizers",
        *([models] if models else []),
    ]
    return {
        "device": setup.kind,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{name: ascend.installed(name) or NOT_INSTALLED for name in distributions},
        "code": code(),
        "CANN": setup.cann_level or NOT_INSTALLED,
        "driver": ascend.driver_version(setup.root) or NOT_INSTALLED,
    }


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that affect computation or communication; no secrets."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(COMPARED) and not OF_ONE_MACHINE.fullmatch(name) and not SECRET.search(name)
    }


def code() -> str:
    """A SHA-256 of the project's Python files."""
    digest = hashlib.sha256()
    for name, file in _files():
        digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _files() -> Iterator[tuple[str, Path]]:
    for package in (llm_npu, paddle_fused, virtual_npu):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            yield str(file.relative_to(folder.parent)), file


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    folder = folder.expanduser().resolve()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def by_name(machines: Sequence[Machine], facts: Sequence[Facts]) -> dict[str, Facts]:
    """{name: facts}, with names such as "machine1 10.77.0.2 (ranks 2 to 3)"."""
    return {printable(f"{own.host} {machine}"): own for machine, own in zip(machines, facts, strict=True)}


def table(machines: Mapping[str, Facts]) -> str:
    """A table of facts that should be equal but differ, with values and machines; "" if there are none.

        what  value    machines
        CANN  8.0.0    machine0 10.77.0.1 (ranks 0 to 1)
              8.1.RC1  machine1 10.77.0.2 (ranks 2 to 3)

    ``machines``: name -> facts. The most common value comes first.
    """
    rows = [
        (what if number == 0 else "", value, _listed(names))
        for what, values in _differing(machines)
        for number, (value, names) in enumerate(values)
    ]
    if not rows:
        return ""
    rows.insert(0, ("what", "value", "machines"))
    return "\n".join(f"  {line}" for line in aligned(rows))


def note(machines: Mapping[str, Facts]) -> str:
    """One line about machines without differences: least free memory and disk, and reported facts."""
    line = f"{len(machines)} machines with equal versions, code, data and variables"
    by_memory = {name: facts.memory for name, facts in machines.items() if facts.memory is not None}
    for what, free in (
        ("memory", by_memory),
        ("disk", {name: facts.disk for name, facts in machines.items()}),
    ):
        if free:
            least = min(free, key=free.__getitem__)
            line += f"; least free {what}: {free[least] / GIB:.1f} GiB on {least}"
    for what, values in _unequal({name: facts.reported for name, facts in machines.items()}):
        line += f"; {what} is " + ", ".join(f"{value} on {_listed(names)}" for value, names in values)
    return line


def _differing(machines: Mapping[str, Facts]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Yield each fact that should be equal but differs, with (value, names of machines)."""
    yield from _unequal({name: facts.equal for name, facts in machines.items()})
    clocks = {name: facts.clock for name, facts in machines.items()}
    if max(clocks.values()) - min(clocks.values()) > CLOCK:
        first = next(iter(clocks.values()))
        yield "clock", _by_value({name: f"{clock - first:+.0f} s" for name, clock in clocks.items()})


def _unequal(facts: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    for what in dict.fromkeys(what for values in facts.values() for what in values):
        values = {name: own.get(what, UNSET) for name, own in facts.items()}
        if len(set(values.values())) > 1:
            yield printable(what), [(_short(value), names) for value, names in _by_value(values)]


def _by_value(values: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for name, value in values.items():
        grouped.setdefault(value, []).append(name)
    return sorted(grouped.items(), key=lambda item: -len(item[1]))


def _short(value: str) -> str:
    if len(value) == 64 and all(character in "0123456789abcdef" for character in value):
        return value[:HASH]
    return printable(shortened(value, SHOWN))


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
