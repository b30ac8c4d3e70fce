"""Runs one rank of each role of a dry run, then matches the collectives of all ranks and reports the roles.

Importing this module imports no framework.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from llm_npu.core import stopping
from llm_npu.launch import fake_process_group
from paddle_fused import strict_json

from . import calls, matching, roles
from .world import World

JOURNAL = "VIRTUAL_NPU_JOURNAL"
REPORT = "ranks.json"
MISMATCH = 1  # exit code


def start(program: Sequence[str], ranks: int, folder: Path) -> int:
    """Run ``program``, a Python file and its arguments, for ``ranks`` ranks; returns the exit code.

    Prints the roles, writes them to ``folder``, and prints the first mismatch on stderr.
    """
    stopping.unshield()  # the exception also ends the child process
    with ExitStack() as stack:
        kept = bool(os.environ.get(JOURNAL))
        if not kept:
            os.environ[JOURNAL] = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "journal")
        ran, code = fake_process_group.start(program, ranks)
        if code:
            return code
        files = [Path(f"{os.environ[JOURNAL]}.{rank}") for rank in ran]
        if kept:
            print(f"\nfiles    {', '.join(map(str, files))}")
        return report(files, folder)


def report(files: Sequence[Path], folder: Path) -> int:
    """Match the journals of the ranks that ran, and print and write the report. Returns the exit code."""
    world = World([calls.read(file) for file in files])
    rows = roles.roles(world)
    print(f"\n{roles.table(rows).text()}")
    content = {"ranks": world.count, "mesh": world.mesh, "roles": [row.as_json() for row in rows]}
    try:
        matched = matching.match(world)
    except matching.Mismatch as error:
        content["mismatch"] = str(error)
    else:
        content |= {"collectives": matched.calls, "groups": matched.groups}
        print(f"matched  {matched.summary()}")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / REPORT
    file.write_text(strict_json.dumps(content, indent=1) + "\n")
    print(f"files    {file}", flush=True)
    if "mismatch" in content:
        print(f"error: {content['mismatch']}", file=sys.stderr)
        return MISMATCH
    return 0
