"""Debian's aarch64 Python in a folder, run on other processors by qemu's user-mode emulation.

Nothing is installed on the machine, and root is not required. apt downloads and verifies the packages, using
package lists in the same folder; they are unpacked without running their scripts.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from paddle_fused.libraries import SetupError

from .commands import find_tools, run

PYTHON = "3.11"  # of Debian 12
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Paddle's aarch64 wheel includes no OpenMP runtime; its libraries and this project's use gcc's.
PACKAGES = (f"python{PYTHON}", "libstdc++6", "libgomp1")
# Armv8.2 without SVE, like the Kunpeng 920 in Ascend servers.
PROCESSOR = "neoverse-n1"
EMULATOR = "qemu-aarch64"
TOOLS = {EMULATOR: "qemu-user", "apt-get": "apt", "dpkg-deb": "dpkg"}  # Debian's and Ubuntu's packages


def python(folder: Path) -> Path:
    """The path of an executable for the aarch64 Python in ``folder``, created on first use.

    Raises SetupError if a tool is missing or a package is not available.
    """
    program = folder / "python"
    if not program.exists():
        find_tools(TOOLS)
        root = (folder / "root").resolve()
        _unpack_packages(folder, root)
        fresh = program.with_suffix(".new")
        target = root / "usr" / "bin" / f"python{PYTHON}"
        # "$0": sys.executable is the script, so that Python's child processes are emulated as well.
        fresh.write_text(
            "#!/bin/sh\n"
            f"export PYTHONHOME={shlex.quote(str(root / 'usr'))} PYTHONNOUSERSITE=1\n"
            f'exec {shlex.join(command(folder))} -0 "$0" {shlex.quote(str(target))} "$@"\n'
        )
        fresh.chmod(0o755)
        fresh.replace(program)  # atomic and last: an existing program is complete
    return program


def command(folder: Path) -> list[str]:
    """The command prefix that runs an aarch64 program with the libraries below ``folder``."""
    root = str((folder / "root").resolve())
    return [EMULATOR, "-L", root, "-cpu", PROCESSOR]


def _unpack_packages(folder: Path, root: Path) -> None:
    if not Path(KEYRING).is_file():
        raise SetupError(
            f"{KEYRING} is missing.", "Debian and Ubuntu: apt-get install debian-archive-keyring"
        )
    apt = folder / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    sources = apt / "sources.list"
    sources.write_text(f"deb [arch=arm64 signed-by={KEYRING}] {MIRROR} bookworm main\n")
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",  # run as the current user, possibly not root
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Dir::State": apt / "state",
        "Dir::State::status": "/dev/null",  # nothing is installed
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
    }
    command = ["apt-get", *(f"--option={name}={value}" for name, value in settings.items())]
    run([*command, "update"])
    run([*command, "install", "--yes", "--no-install-recommends", "--download-only", *PACKAGES])
    shutil.rmtree(root, ignore_errors=True)
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        run(["dpkg-deb", "-x", package, root])
