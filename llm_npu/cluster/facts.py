"""What one machine of a run is, in text that others can compare.

Importing this module imports no framework.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import llm_npu
import paddle_fused
from llm_npu.doctor import Setup, rank_table
from llm_npu.doctor.checks import ascend, hccl, packages, pairs, resources
from llm_npu.models import library

COMPARED = ("HCCL_", "ASCEND_", "FLAGS_", "VIRTUAL_NPU_", "PADDLE_FUSED_")
# A machine's own addresses, cards, folders and logs.
OF_ONE_MACHINE = re.compile(
    r"HCCL_IF_IP|HCCL_SOCKET_IFNAME|FLAGS_selected_\w+|FLAGS_npus|ASCEND_DEVICE_ID"
    r"|ASCEND_(RT_)?VISIBLE_DEVICES"  # the device plugin of Kubernetes writes them in any order
    r"|VIRTUAL_NPU_(JOURNAL|TRACE|QUIET)|\w+_(HOME|PATH|DIR|FILE)|FLAGS_\w+_dir"
    r"|VIRTUAL_NPU_CANN"  # a fact of its own
)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
REPORTED = ("OMP_NUM_THREADS",)  # machines with other numbers of cores have other values
SUBNET = "the subnet of HCCL's first connections"
UNSET, NOT_INSTALLED = "not set", "not installed"


@dataclass(frozen=True)
class Facts:
    """``equal`` and ``reported``: name -> value. ``clock``: seconds since 1970.

    ``cards``: device -> its address in the devices' network, or "".
    ``memory`` and ``disk``: free bytes, of the host (None if it does not tell) and of the output folder.
    """

    host: str
    equal: Mapping[str, str]
    reported: Mapping[str, str]
    cards: Mapping[str, str]
    clock: float
    memory: int | None
    disk: int

    def now(self) -> Facts:
        """The same with the present clock."""
        return replace(self, clock=time.time())


def gather(setup: Setup, of_run: Mapping[str, object]) -> Facts:
    """The facts of this machine. ``of_run``: what the run itself knows, such as a hash of its data."""
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
    """The device's kind, and the versions of what computes on it; ``code`` is a hash of this project's."""
    models = library.found()
    named = [
        packages.PROJECT,
        "paddlepaddle",
        pairs.PLUGIN,
        "numpy",
        "tokenizers",
        *([models] if models else []),
    ]
    return {
        "device": setup.kind,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{name: pairs.installed(name) or NOT_INSTALLED for name in named},
        "code": code(),
        "CANN": setup.cann_level or NOT_INSTALLED,
        "driver": ascend.driver_version(setup.root) or NOT_INSTALLED,
    }


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that change what a run computes or how it communicates; no secrets."""
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
    for package in (llm_npu, paddle_fused):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            yield str(file.relative_to(folder.parent)), file


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.expanduser().resolve()
    return next(each for each in (folder, *folder.parents) if each.exists())
