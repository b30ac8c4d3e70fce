"""Memory, disk, threads and instruction set of the host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from paddle_fused import libraries
from paddle_fused.cann_installation import content

from ..finding import Finding, error, ok, warning
from ..probe import python
from ..setup import Setup

GIB = 2**30
LEAST_MEMORY, ENOUGH_MEMORY = 1.0, 4.0  # GiB; the frameworks alone need about 1
DOCKERS_SHM = 64.0  # MiB of /dev/shm, Docker's default for a container
TIMEOUT = 60.0  # seconds for a process that loads a library


def memory(setup: Setup) -> Iterator[Finding]:
    """Available memory within the container's limit, without swapping.

    A problem: less than 1 GiB (an error) or 4 GiB; a larger `VIRTUAL_NPU_MEMORY_GB`.
    """
    available = available_memory(setup.root)
    if available is None:
        fix = "Mount /proc into the container."
        yield warning("memory", f"{setup.root / 'proc/meminfo'} does not contain the available memory", fix)
        return
    free = available / GIB
    what = f"{free:.1f} GiB of memory are available"
    smaller = "Stop other programs, raise the container's limit, or train a smaller model or batch."
    if free < LEAST_MEMORY:
        yield error("memory", f"{what}; paddle with paddlenlp needs {LEAST_MEMORY:g}", smaller)
    elif free < ENOUGH_MEMORY:
        yield warning("memory", f"{what}, only enough for the smallest models", smaller)
    else:
        yield ok("memory", what)
    limit = setup.environ.get("VIRTUAL_NPU_MEMORY_GB")
    if setup.kind == "virtual" and limit and _number(limit) > free:
        what = f"VIRTUAL_NPU_MEMORY_GB={limit} exceeds the {free:.1f} GiB that are available"
        yield warning("memory", what, "Reduce it; otherwise the system kills the process without a message.")


def available_memory(root: Path) -> int | None:
    """Available bytes within the control group's limit; None if unknown."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", content(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        return None
    group = root / "sys/fs/cgroup"
    limit, used = (content(group / name).strip() for name in ("memory.max", "memory.current"))
    left = [int(match[1]) * 1024]
    if limit.isdecimal() and used.isdecimal():
        left.append(max(0, int(limit) - int(used)))
    return min(left)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # reported by the check of the device
        return 0.0


def disk(setup: Setup) -> Iterator[Finding]:
    """Write access and free space of the output folder.

    A problem: a folder that is not writable; less free space than `--disk_gb`.
    """
    folder = setup.output_dir.expanduser().resolve()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as failure:
        fix = "Use another --output_dir, free some space, or make the folder writable."
        yield error("disk", f"{setup.output_dir} cannot be written: {failure.strerror} ({folder})", fix)
        return
    free = shutil.disk_usage(folder).free / GIB
    what = f"{free:.1f} GiB are free in {folder}"
    if free < setup.disk_gb:
        fix = "Free some space, use another --output_dir, or keep fewer checkpoints (--save_total_limit)."
        yield warning("disk", f"{what}; a run that keeps two checkpoints may need {setup.disk_gb:g}", fix)
    else:
        yield ok("disk", what)


def shared_memory(setup: Setup) -> Iterator[Finding]:
    """The size of `/dev/shm`, which data loader workers use to pass batches.

    A problem: at most Docker's default of 64 MiB, which the workers exceed.
    """
    mount = _mount(content(setup.root / "proc/mounts"), "/dev/shm")
    if mount.point != "/dev/shm":
        yield ok("shm", "/dev/shm is not a separate mount")
        return
    size = re.search(r"\bsize=(\d+)k", mount.options) if mount.kind == "tmpfs" else None
    if size is None:
        yield ok("shm", "/dev/shm has no size limit")
        return
    megabytes = int(size[1]) / 1024
    what = f"/dev/shm has {megabytes:,.0f} MiB"
    if megabytes <= DOCKERS_SHM:
        fix = "Start the container with --shm-size=16g, or train with --dataloader_num_workers 0."
        yield warning("shm", f"{what}: data loader workers crash with a bus error when it is full", fix)
    else:
        yield ok("shm", what)


class _Mount(NamedTuple):
    """A line of /proc/mounts."""

    point: str = ""
    kind: str = ""
    options: str = ""


def _mount(mounts: str, path: str) -> _Mount:
    """The mount of ``path``. A later mount hides earlier mounts at the same point or below."""
    above = {path, *map(str, Path(path).parents)}
    lines = [fields for line in mounts.splitlines() if len(fields := line.split()) > 3 and fields[1] in above]
    return _Mount(*lines[-1][1:4]) if lines else _Mount()


def threads(setup: Setup) -> Iterator[Finding]:
    """`OMP_NUM_THREADS` compared with the cores that this process may use.

    A problem: not a number; more threads than cores.
    """
    cores, setting = len(os.sched_getaffinity(0)), setup.environ.get("OMP_NUM_THREADS")
    fix = f"Run `unset OMP_NUM_THREADS`, or set it to {cores}; with N processes per host, to {cores} / N."
    first = (setting or "").partition(",")[0].strip()
    if setting is None:
        yield ok("threads", f"{cores} core(s), all used by a run")
    elif not first.isdecimal() or int(first) < 1:
        yield error("threads", f"OMP_NUM_THREADS is {setting!r}; accepted: 1 or more", fix)
    elif int(first) > cores:
        yield warning(
            "threads", f"OMP_NUM_THREADS={setting} on {cores} core(s): threads wait for each other", fix
        )
    else:
        yield ok("threads", f"{setting} of {cores} core(s) (OMP_NUM_THREADS)")


def instruction_set(setup: Setup) -> Iterator[Finding]:
    """The instruction set selected by the host kernels, tested in a separate process.

    A problem: kernels that cannot be loaded; a `PADDLE_FUSED_ISA` that the machine does not support.
    """
    if not libraries.is_built(libraries.folder()):
        return  # reported by the check of the plugin
    command, environ = python("paddle_fused.instruction_set"), dict(setup.environ)
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, errors="replace", timeout=TIMEOUT
    )
    if done.returncode == 0:
        yield ok("kernels", f"the host kernels use {done.stdout.strip()}")
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    thrown = [line.partition("what():")[2].strip() for line in lines if "what():" in line]
    what = (thrown or lines or [f"exit code {done.returncode}"])[-1]
    fix = "Run `unset PADDLE_FUSED_ISA`." if "PADDLE_FUSED_ISA" in what else libraries.how_to_build()
    yield error("kernels", f"the host kernels do not work: {what}", fix)


CHECKS = {
    "memory": memory,
    "disk": disk,
    "shm": shared_memory,
    "threads": threads,
    "kernels": instruction_set,
}
