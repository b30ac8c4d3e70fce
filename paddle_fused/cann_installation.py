"""Finds the CANN installation and reads its version.

``version.cfg`` has a line ``toolkit_running_version=[7.3.0.1.231:8.0.RC2]`` for each component (its name may
have hyphens: ``npu-runtime``), ``<machine>-linux/ascend_toolkit_install.info`` a line ``version=8.0.RC2``.
From 8.5.0 on, ``share/info/<package>/version.info`` has a line ``Version=8.5.0`` for each package. Versions
of CANN and of its driver are ordered 8.0.RC1 < 8.0.RC2.alpha001 < 8.0.RC2 < 8.0.0 < 8.1.RC1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAMED_BY = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # set by set_env.sh
FOLDERS = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann")
RUNNING = re.compile(r"^([\w-]+)_running_version=\[[^\]:]*:([^\]]+)\]", re.MULTILINE)


@dataclass(frozen=True)
class Cann:
    """A CANN installation.

    Attributes:
        version: None if no file contains it.
        components: the versions of its components.
        named_by: the environment variable with the folder; empty for a default folder.
    """

    folder: Path
    version: str | None
    components: Mapping[str, str]
    named_by: str


def find_cann(environ: Mapping[str, str], root: Path) -> Cann | None:
    """The installation named by the environment, else the one in a default folder below ``root``, or None."""
    for variable in NAMED_BY:
        if environ.get(variable):
            return read_cann(Path(environ[variable]), variable)
    for folder in FOLDERS:
        if (root / folder).is_dir():
            return read_cann(root / folder, "")
    return None


def read_cann(folder: Path, named_by: str = "") -> Cann:
    """The installation in ``folder``."""
    components = dict(RUNNING.findall(content(folder / "version.cfg")))
    for file in sorted(folder.glob("share/info/*/version.info")):
        if version := field(content(file), "Version"):
            components.setdefault(file.parent.name, version)
    version = components.get("toolkit") or components.get("runtime") or components.get("npu-runtime")
    for file in sorted(folder.glob("*-linux/ascend_toolkit_install.info")):
        version = version or field(content(file), "version")
    return Cann(folder, version, components, named_by)


def field(text: str, name: str) -> str | None:
    """The value of a line ``name=value``."""
    match = re.search(rf"^{name}=(\S+)", text, re.MULTILINE)
    return match[1] if match else None


def library_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders of LD_LIBRARY_PATH."""
    return [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]


def content(file: Path) -> str:
    """The text of the file; empty if it does not exist or cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(RC|T)?(\d+))?(?:\.(alpha|beta)?(\d+))?", re.IGNORECASE)
STAGES = {"T": 0, "RC": 1, "": 2}  # trials and release candidates come before the release
MC2_DRIVER = "24.1.RC2"  # the first version that documents matmuls fused with collectives


def is_before(version: str, other: str) -> bool:
    """Whether ``version`` is older; False if one of them is not a version, such as ``???``."""
    keys = _order(version), _order(other)
    return None not in keys and keys[0] < keys[1]


def _order(version: str) -> tuple[int, ...] | None:
    match = VERSION.match(version)
    if match is None:
        return None
    major, minor, stage, number, preview, last = match.groups()
    return (
        int(major),
        int(minor),
        STAGES[(stage or "").upper()],
        int(number or 0),
        not preview,
        int(last or 0),
    )
