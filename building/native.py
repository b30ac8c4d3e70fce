"""Checks whether this machine can build the native libraries, and builds them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from paddle_fused import libraries
from paddle_fused.libraries import SetupError

from .installed_paddle import find_paddle

OLDEST_COMPILERS = {"gcc": 9, "clang": 14}
VARIABLE = "PADDLE_FUSED_BUILD"
CHOICES = {
    "": "native libraries for this machine's processor if there is a compiler, otherwise Python only",
    "portable": "native libraries with every instruction set that the compiler supports",
    "off": "Python only, which needs neither a compiler nor Paddle's headers",
}
PURE = f"set {VARIABLE}=off to install only the card's operators and compositions of Paddle's operators."


def choice() -> str:
    """The value of PADDLE_FUSED_BUILD. Raises SetupError if it is not one of ``CHOICES``."""
    value = os.environ.get(VARIABLE, "")
    if value not in CHOICES:
        accepted = "; ".join(f"{name or 'nothing'}: {what}" for name, what in CHOICES.items())
        raise SetupError(f"{VARIABLE}={value} is unknown.", f"Accepted: {accepted}.")
    return value


def is_wanted() -> bool:
    """Whether to build the libraries. Raises SetupError if they are required but cannot be built."""
    if choice() == "off" or (choice() == "" and "CXX" not in os.environ and not shutil.which("g++")):
        return False
    check_compiler()
    return True


def check_compiler() -> None:
    """Raises SetupError if there is no compiler, or if it fails or is too old."""
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        raise SetupError(
            f"The native code cannot be built: no `{command[0]}` was found.",
            f"Install a compiler (Debian and Ubuntu: apt-get install g++), set CXX to one, or {PURE}",
        )
    question = [*command, "-dM", "-E", "-x", "c++", "/dev/null"]  # predefined macros, with the version
    probe = subprocess.run(question, capture_output=True, text=True, timeout=60)
    if code := probe.returncode:
        errors = probe.stderr.strip() or "no output"
        raise SetupError(
            f"The native code cannot be built: `{shlex.join(question)}` exited with {code}: {errors}.",
            f"Set CXX to a working compiler, or {PURE}",
        )
    for name, macro in (("clang", "__clang_major__"), ("gcc", "__GNUC__")):  # clang defines both
        version = re.search(rf"^#define {macro} (\d+)", probe.stdout, re.MULTILINE)
        if version is None:
            continue
        if int(version[1]) < OLDEST_COMPILERS[name]:
            accepted = " or ".join(f"{name} from {oldest} on" for name, oldest in OLDEST_COMPILERS.items())
            raise SetupError(
                f"The native code cannot be built: {command[0]} is {name} {version[1]}; accepted: "
                f"{accepted}.",
                f"Set CXX to a newer compiler, or {PURE}",
            )
        return


def forget_tools(build: Path) -> None:
    """Makes cmake search for its tools again: those of an earlier build, such as pip's ninja, may be gone.

    ``cmake --fresh`` would also delete the compiled objects.
    """
    (build / "CMakeCache.txt").unlink(missing_ok=True)
    for tools in (build / "CMakeFiles").glob("[0-9]*"):  # one folder per version of cmake
        shutil.rmtree(tools)


def build(source: Path, build: Path, destination: Path) -> None:
    """Configures, compiles and installs the libraries below ``destination``."""
    check_compiler()
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise SetupError(
                f"The native code cannot be built: no `{tool}` was found.",
                "It is a build requirement: build with pip, or run `pip install cmake ninja`.",
            )
    there = find_paddle()
    if there is None:
        raise SetupError("paddlepaddle is not installed; its headers are needed.", "Build with pip.")
    sources = libraries.sources_digest(source)  # before the compiler reads them
    forget_tools(build)
    configure = ["cmake", "-S", str(source / "paddle_fused" / "csrc"), "-B", str(build), "-G", "Ninja"]
    configure += [
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPADDLE_DIR={there.folder}",
        f"-DPADDLE_VERSION={there.build.version}",
        f"-DPADDLE_COMMIT={there.build.commit}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DPADDLE_FUSED_HOST_ISAS_ONLY={'OFF' if choice() == 'portable' else 'ON'}",
    ]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            lines = done.stdout.splitlines()
            at = [number for number, line in enumerate(lines) if re.search(r"\berror\b:|CMake Error", line)]
            # cmake prints the reason below the error line.
            errors = [line for line in lines[at[0] :] if line.strip()] if at else lines
            raise SetupError(
                f"The native code did not compile ({' '.join(command[:2])} exited with {done.returncode}):",
                "\n".join(errors[:12]),
            )
    *built, stamp_file = (destination / file for file in libraries.BUILT_FILES)
    for target in built:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A running process may have mapped the old library: replace the file instead of overwriting it.
        fresh = target.with_suffix(".new")
        shutil.copy2(build / target.name, fresh)
        fresh.replace(target)
    stamp = {"paddle_version": there.build.version, "paddle_commit": there.build.commit, "sources": sources}
    stamp_file.write_text(json.dumps(stamp) + "\n")
