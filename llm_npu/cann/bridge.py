"""Writes a forwarding ``libopapi.so`` for a CANN installation with only the split libraries.

paddle-custom-npu looks up every aclnn function in ``libopapi.so``. CANN deprecates that library from 8.5.0 on
and may remove it in releases after 2026-12-30 (sources: ``data/releases.json``). The forwarding library has
no code: its DT_NEEDED entries are the installed split libraries, which ``dlsym`` searches.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from llm_npu.core import atomic
from llm_npu.core.errors import UserError
from paddle_fused import strict_json
from paddle_fused.cann_installation import Cann, library_folders

from .check import OPERATORS, PARTS
from .compiler import build_library
from .elf import Library, UnreadableLibrary, closure, find
from .needs import of_plugin, symbols

FOLDER = Path(sys.prefix) / "lib" / "cann_bridge"
BASE = "libnnopbase.so"  # aclCreateTensor and similar functions
MARK = "cann_bridge.json"  # next to the library: identifies it and lists its targets
ADVICE = (
    "CANN's notes advise against using libopapi.so together with the libraries that it was split into; "
    "this library contains no code"
)


def write(
    cann: Cann, folder: Path = FOLDER, environ: Mapping[str, str] = os.environ
) -> tuple[Path, list[str]]:
    """Write the forwarding library for ``cann`` into ``folder``.

    Returns:
        The library's path, and the plugin's functions that the libraries lack.

    Raises:
        UserError: CANN has its own ``libopapi.so``, or none of the split libraries; the C compiler is missing
            or fails; ``folder`` contains a different ``libopapi.so``.
    """
    folders = [*library_folders(environ), cann.folder / "lib64"]
    folders = [folder for folder in folders if not (folder / MARK).exists()]
    own = find(OPERATORS, folders)
    if own is not None:
        raise UserError(f"{own} exists: the plugin needs no forwarding library with this CANN")
    installed = [file for name in (*PARTS, BASE) if (file := find(name, folders))]
    if not any(file.name in PARTS for file in installed):
        raise UserError(
            f"{cann.folder / 'lib64'} has none of {', '.join(PARTS)}; specify CANN's folder with --cann"
        )
    target = folder / OPERATORS
    if target.exists() and not (folder / MARK).exists():
        raise UserError(f"{target} was not written by this command; specify another --folder")
    with tempfile.TemporaryDirectory() as work:  # a failed compilation leaves nothing in the folder
        library = Path(work) / OPERATORS
        arguments = ["-nostdlib", "-x", "c", os.devnull, "-x", "none"]
        arguments += ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", *map(str, installed)]
        build_library(library, OPERATORS, arguments)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic.new_file(folder / MARK) as file:
            file.write_text(
                strict_json.dumps({"cann": str(cann.folder), "forwards_to": list(map(str, installed))})
            )
        with atomic.new_file(target) as file:
            shutil.copy(library, file)
    handle = closure(target, [file.parent for file in installed])
    return target, handle.lacks((*symbols(of_plugin().libraries), *of_plugin().looked_up))


def remove(folder: Path = FOLDER) -> Path:
    """Remove the forwarding library from ``folder``. Raises UserError if there is none."""
    if not (folder / MARK).exists():
        raise UserError(f"{folder} has no library written by `llm-npu cann_bridge write`")
    (folder / OPERATORS).unlink(missing_ok=True)
    (folder / MARK).unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
    return folder / OPERATORS


def in_use(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The forwarding library if it is the first ``libopapi.so`` on LD_LIBRARY_PATH, else None."""
    library = find(OPERATORS, library_folders(environ))
    return library if library is not None and (library.parent / MARK).exists() else None


def export_line(library: Path) -> str:
    """The shell command that puts the library first on LD_LIBRARY_PATH."""
    return f"export LD_LIBRARY_PATH={library.parent}:$LD_LIBRARY_PATH"


def forwards_to(library: Path) -> list[str]:
    """The names of the libraries that the forwarding library needs; empty if it cannot be read."""
    try:
        return list(Library(library).needed)
    except UnreadableLibrary:
        return []
