"""The folders of profiles, one per rank, shared by all tools.

paddle-custom-npu writes a card's raw profile to FLAGS_npu_profiling_dir, which it reads when paddle is
imported. Its parser reads PROFILER_OUTPUT_DIR. Both are set to the same folder here.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from llm_npu.core import machines
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.core.untrusted.plain_text import printable
from paddle_fused import strict_json

VARIABLES = ("FLAGS_npu_profiling_dir", "PROFILER_OUTPUT_DIR")
MACHINE = "machine.json"  # in the folder of a rank


def rank() -> int:
    """The rank of this process in the job, from 0; known before paddle is imported."""
    return int(os.environ.get("PADDLE_TRAINER_ID") or 0)


def of_rank(folder: str | Path) -> Path:
    """``folder``/rank_N of this process, absolute."""
    return Path(folder).expanduser().absolute() / f"rank_{rank()}"


def prepare(folder: str | Path) -> Path:
    """Direct profiles of this process to ``folder``/rank_N, and return that path without creating it.

    Call this before paddle is imported, because a card's plugin reads the environment only then. The virtual
    NPU reads it at the end of each recording.
    """
    own = of_rank(folder)
    for name in VARIABLES:
        os.environ[name] = str(own)
    return own


def is_prepared(folder: str | Path) -> bool:
    """Whether all variables are set to ``folder``/rank_N of this process."""
    return all(os.environ.get(name) == str(of_rank(folder)) for name in VARIABLES)


def profiles(own: Path) -> list[Path]:
    """The profiles of the device in a rank's folder, ``PROF_*``, oldest first."""
    return sorted(own.glob("PROF_*"))


def write_machine(own: Path) -> None:
    """Write this machine's name into a rank's folder if the run has several machines."""
    run = machines.read()
    (own / MACHINE).unlink(missing_ok=True)
    if len(run.all) > 1:
        about = {"host": socket.gethostname(), "address": run.own.address}
        (own / MACHINE).write_text(strict_json.dumps(about) + "\n")


def read_machine(file: Path) -> str:
    """The machine as ``node7 (10.0.0.7)``; raises ValueError for an invalid file."""
    about = plain_json.mapping(file)
    names = [about.get(key) for key in ("host", "address")]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f'{file} is not {{"host": "...", "address": "..."}}')
    host, address = (printable(name, longest=255) for name in names)
    return f"{host} ({address})"
