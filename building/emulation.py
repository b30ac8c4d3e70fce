"""A Python for aarch64 on a machine that is not: Debian's, in a folder, run by qemu's user emulation.

Nothing is installed on the machine and nobody has to be root: apt fetches and checks the packages with lists
of its own, and they are only unpacked. No program of theirs runs but the Python.
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
# Paddle's wheel brings no OpenMP runtime for aarch64: its libraries and ours use gcc's.
PACKAGES = (f"python{PYTHON}", "libstdc++6", "libgomp1")
# Armv8.2 without SVE, as the Kunpeng 920 of servers with Ascend cards.
PROCESSOR = "neoverse-n1"
EMULATOR = "qemu-aarch64"
TOOLS = {EMULATOR: "qemu-user", "apt-get": "apt", "dpkg-deb": "dpkg"}  # Debian's and Ubuntu's packages


def python(folder: Path) -> Path:
    """The path of a program that is an aarch64 Python below ``folder``; made, unless it is there.

    SetupError if a tool is missing or a package cannot be had.
    """
    program = folder / "python"
    if not program.exists():
        find_tools(TOOLS)
        root = (folder / "root").resolve()
        _unpack_packages(folder, root)
        fresh = program.with_suffix(".new")
        target = root / "usr" / "bin" / f"python{PYTHON}"
        # "$0": sys.executable names the script, so that processes that a program starts work, too.
        fresh.write_text(
            "#!/bin/sh\n"
            f"export PYTHONHOME={shlex.quote(str(root / 'usr'))} PYTHONNOUSERSITE=1\n"
            f'exec {shlex.join(command(folder))} -0 "$0" {shlex.quote(str(target))} "$@"\n'
        )
        fresh.chmod(0o755)
        fresh.replace(program)  # the last step: what is there is complete
    return program


def command(folder: Path) -> list[str]:
    """What runs an aarch64 program with the libraries below ``folder``: words to be followed by its path."""
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
        "APT::Sandbox::User": "",  # the user who runs this, who may not be root
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
