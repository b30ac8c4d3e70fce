"""CANN, the driver and the cards, from their files and from npu-smi."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..cann import content, field
from ..finding import Finding, error, ok, warning
from ..setup import Setup

DRIVER = "usr/local/Ascend/driver/version.info"
TOOLS = ("usr/local/sbin", "usr/local/bin")
LIBRARY = "libascendcl.so"
SOURCE = "Run `source {}`, here and in the shell that starts training."
# | 0     910B2               | OK            | 93.6        40                0    / 0             |
HEALTH = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(OK|Warning|Alarm|Critical|UNKNOWN)\s*\|", re.MULTILINE)
TIMEOUT = 30.0  # seconds for npu-smi


def cann(setup: Setup) -> Iterator[Finding]:
    """CANN: `ASCEND_HOME_PATH`, `ASCEND_TOOLKIT_HOME`, the usual folders; `version.cfg`,
    `ascend_toolkit_install.info`; `LD_LIBRARY_PATH`.

    A problem: missing or moved CANN; parts of different versions; `set_env.sh` that was not sourced.
    """
    found, needed = setup.cann, setup.kind == "card"
    if found is None:
        if needed:
            fix = "Install Ascend-cann-toolkit and the kernels of the card's chip, and source its set_env.sh."
            yield error("cann", "CANN is not installed, and a card needs it", fix)
        else:
            yield ok("cann", "not installed, and not needed without a card")
        return
    judge = error if needed else warning
    if not found.folder.is_dir():
        fix = f"Unset {found.named_by}, or source the set_env.sh of the CANN that is installed."
        yield judge("cann", f"{found.named_by} names {found.folder}, which does not exist", fix)
    elif found.version is None:
        fix = "Install Ascend-cann-toolkit again: version.cfg or ascend_toolkit_install.info is missing."
        yield judge("cann", f"{found.folder} does not say which version of CANN it is", fix)
    else:
        yield ok("cann", f"CANN {found.version} in {found.folder}")
        yield from _components(setup)
        if needed and not _on_library_path(setup):
            what = f"{LIBRARY} is not in any folder of LD_LIBRARY_PATH: the plugin cannot be loaded"
            yield error("cann", what, SOURCE.format(_set_env(found.folder)))


def _components(setup: Setup) -> Iterator[Finding]:
    others = {name: v for name, v in setup.cann.components.items() if v != setup.cann.version}
    if others:
        names = ", ".join(f"{name} {version}" for name, version in sorted(others.items()))
        what = f"CANN is {setup.cann.version}, but some of its parts have other versions: {names}"
        fix = f"Install the toolkit and the kernels of one version, such as {setup.cann.version}."
        yield warning("cann", what, fix)


def _on_library_path(setup: Setup) -> bool:
    folders = setup.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return any((Path(folder) / LIBRARY).exists() for folder in folders if folder)


def _set_env(cann: Path) -> Path:
    """The set_env.sh of an installation: in its folder, or next to the folder ``latest``."""
    inside = cann / "set_env.sh"
    return inside if inside.exists() else cann.parent / "set_env.sh"


def driver_version(root: Path) -> str | None:
    """The version of the driver installed below ``root``."""
    return field(content(root / DRIVER), "Version")


def driver(setup: Setup) -> Iterator[Finding]:
    """The driver's `version.info`, and the cards' health by `npu-smi info`.

    A problem: no answer; no card; a card whose health is not OK.
    """
    version = driver_version(setup.root)
    if setup.kind != "card":
        yield ok("driver", f"{version or 'not installed'}; not needed without a card")
        return
    if version is None:
        fix = "Install the driver, or mount the file into the container (docker run -v FILE:FILE:ro)."
        yield warning("driver", f"/{DRIVER} does not say its version", fix)
    else:
        yield ok("driver", f"driver {version}")
    tool = _npu_smi(setup)
    if tool is None:
        fix = "Install the driver, or mount /usr/local/bin/npu-smi and /usr/local/dcmi into the container."
        yield warning("driver", "npu-smi is not installed: the health of the cards is unknown", fix)
    else:
        yield from _health(tool)


def _npu_smi(setup: Setup) -> str | None:
    for folder in TOOLS:
        if os.access(setup.root / folder / "npu-smi", os.X_OK):
            return str(setup.root / folder / "npu-smi")
    return shutil.which("npu-smi", path=setup.environ.get("PATH"))


def _health(tool: str) -> Iterator[Finding]:
    restart = "Look at `npu-smi info` and dmesg; reset the card (npu-smi set -t reset) or restart the host."
    try:
        done = subprocess.run(
            [tool, "info"], capture_output=True, text=True, errors="replace", timeout=TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        yield error("driver", f"`npu-smi info` does not answer: {failure}", restart)
        return
    cards = HEALTH.findall(done.stdout)
    ill = [f"card {number} ({chip}) is {health}" for number, chip, health in cards if health != "OK"]
    if done.returncode != 0 or not cards:
        said = (done.stderr or done.stdout).strip().splitlines()
        yield error("driver", f"`npu-smi info` sees no card: {(said or ['no output'])[-1]}", restart)
    elif ill:
        yield error("driver", f"npu-smi: {', '.join(ill)}", restart)
    else:
        yield ok("driver", f"npu-smi: {len(cards)} card(s), {cards[0][1]}, health OK")


CHECKS = {"cann": cann, "driver": driver}
