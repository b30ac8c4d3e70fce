"""Write, show or remove a forwarding libopapi.so for a CANN installation with only the split libraries.

    llm-npu cann_bridge write                # then run the line that it prints
    llm-npu cann_bridge status
    llm-npu cann_bridge remove

CANN deprecates libopapi.so from 8.5.0 on, and paddle-custom-npu makes all of its aclnn calls through it. The
forwarding library has no code: it makes the loader search libopapi_math.so, libopapi_nn.so, ... instead. Exit
codes: 0 done; 1 (status) no forwarding library is in use; 2 bad input, with one sentence on stderr.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from llm_npu.cann import bridge
from llm_npu.core import console, paths
from llm_npu.core.errors import UserError, caused_by_the_user
from paddle_fused import command_line
from paddle_fused.cann_installation import NAMED_BY, Cann, find_cann, read_cann


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    with caused_by_the_user():  # folders that cannot be written
        return {"write": _write, "remove": _remove, "status": _status}[arguments.action](arguments)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.of_document("llm-npu cann_bridge", __doc__)
    parser.add_argument("action", choices=("write", "remove", "status"))
    parser.add_argument(
        "--cann",
        type=paths.path_argument,
        help=f"folder of CANN (default: {', '.join(NAMED_BY)}, then the usual folders)",
    )
    parser.add_argument(
        "--folder",
        type=paths.path_argument,
        default=bridge.FOLDER,
        help="folder of the forwarding library (default: lib/cann_bridge of this Python's environment)",
    )
    return parser


def _cann(folder: Path | None) -> Cann:
    cann = find_cann(os.environ, Path("/")) if folder is None else read_cann(folder)
    if cann is None:
        raise UserError("no CANN was found in the default folders; specify its folder with --cann")
    if not cann.folder.is_dir():
        source = cann.named_by or "--cann"
        raise UserError(
            f"{cann.folder} ({source}) is not a folder; specify the folder of a CANN installation"
        )
    return cann


def _write(arguments: argparse.Namespace) -> int:
    library, missing = bridge.write(_cann(arguments.cann), arguments.folder)
    console.say(f"written {library}, which forwards to {', '.join(bridge.forwards_to(library))}")
    if missing:
        console.say(f"not found in these libraries: {', '.join(missing)}")
    console.say(bridge.ADVICE)
    console.say(f"run: {bridge.export_line(library)}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    console.say(f"removed {bridge.remove(arguments.folder)}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    library = bridge.in_use()
    if library is None:
        written = arguments.folder / bridge.OPERATORS
        hint = f"; to use {written}: {bridge.export_line(written)}" if written.exists() else ""
        console.say(f"no forwarding {bridge.OPERATORS} is in use{hint}")
        return 1
    console.say(f"{library} is in use and forwards to {', '.join(bridge.forwards_to(library))}")
    return 0
