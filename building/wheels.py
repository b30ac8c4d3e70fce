"""Builds a wheel for one Paddle release and one processor, and an environment to check it in.

The libraries do not link to Python, so one wheel supports every Python. On another processor, aarch64
libraries are cross-compiled, and the environment's Python is emulated.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from paddle_fused import libraries
from paddle_fused.libraries import SetupError

from . import emulation
from .commands import find_tools, run
from .installed_paddle import RELEASES

ROOT = Path(__file__).resolve().parents[1]
CACHE_VARIABLE = "PADDLE_FUSED_CACHE"
CROSS_COMPILER = "aarch64-linux-gnu-g++"
CROSS_TOOLS = {CROSS_COMPILER: "g++-aarch64-linux-gnu", **emulation.TOOLS}  # program -> Debian package
# Platform tags that pip accepts for Paddle's wheels and their requirements.
GLIBC = ("manylinux2014", "manylinux_2_27", "manylinux_2_28")
# Compares one operator on every backend and device with its float64 reference.
CHECK = ("-m", "paddle_fused.parity", "rms_norm", "--json", "-")


def cache() -> Path:
    """The folder, outside the sources, of cached downloads, environments and compiled files."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(home) / "paddle_fused").resolve()


def emulated_python() -> Path:
    """The folder of the emulated aarch64 Python."""
    return cache() / "python-aarch64"


class Target(NamedTuple):
    """The target of a wheel: a release such as 3.2.2 and a processor such as ``aarch64``."""

    release: str
    processor: str

    def __str__(self) -> str:
        return f"paddlepaddle {self.release} on {self.processor}"

    @property
    def emulated(self) -> bool:
        return self.processor != platform.machine()

    @property
    def folder(self) -> Path:
        return cache() / f"{self.release}-{self.processor}"

    def check(self) -> None:
        """Raises SetupError if there is no such Paddle wheel, or if this machine cannot build for it."""
        makes = sorted({platform.machine(), "aarch64"} & RELEASES.keys())
        if self.processor not in makes:
            raise SetupError(
                f"Processor {self.processor}; accepted: {', '.join(makes)}.", "Name one of them."
            )
        if self.release not in RELEASES[self.processor]:
            accepted = ", ".join(RELEASES[self.processor])
            raise SetupError(
                f"There is no wheel of {self} to build for; accepted on {self.processor}: {accepted}.",
                "Name one of them.",
            )


class Environment(NamedTuple):
    """A Python whose only packages are in the folder ``site``, and the pip command that installs there."""

    python: Path
    site: Path
    pip: tuple[str | Path, ...]

    def install(self, *arguments: str | Path) -> None:
        """Runs ``pip install ARGUMENTS...``, wheels only. Raises SetupError if it fails."""
        run([*self.pip, "--quiet", "--no-warn-conflicts", "--only-binary=:all:", *arguments])

    def variables(self, **changes: str) -> dict[str, str]:
        """The variables of a process in the environment: this process's, cleaned, with ``changes``."""
        other = ("PYTHON", "CUSTOM_DEVICE_ROOT", "VIRTUAL_NPU_")  # belong to this process's environment
        kept = {name: value for name, value in os.environ.items() if not name.startswith(other)}
        return {**kept, "PYTHONPATH": str(self.site), "PYTHONNOUSERSITE": "1", **changes}

    def run(self, *arguments, timeout: float, **variables: str) -> subprocess.CompletedProcess:
        """Runs ``python ARGUMENTS...`` outside the source tree."""
        return subprocess.run(
            [str(self.python), *map(str, arguments)],
            env=self.variables(**variables),
            cwd="/",
            timeout=timeout,
            capture_output=True,
            text=True,
        )


def environment(target: Target, python: str = sys.executable) -> Environment:
    """A cached environment that contains only the Paddle release, without its requirements.

    ``python`` is its interpreter; an emulated target ignores it.
    """
    if target.emulated:
        version = emulation.PYTHON
        site = target.folder / f"site-{version}"
        platforms = [f"--platform={name}_{target.processor}" for name in (*GLIBC, "linux")]
        command = [sys.executable, "-m", "pip", "install", "--target", site, "--upgrade", *platforms]
        command += ["--implementation=cp", f"--python-version={version}"]
        python_environment = Environment(emulation.python(emulated_python()), site, tuple(command))
    else:
        version = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
        venv = target.folder / f"venv-{version}"
        if not (venv / "bin/python").exists():
            run([python, "-m", "venv", "--clear", "--without-pip", venv])
        site = venv / f"lib/python{version}/site-packages"
        command = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "install"]
        python_environment = Environment(venv / "bin/python", site, tuple(command))
    if not list(site.glob("paddlepaddle-*.dist-info/RECORD")):  # the last file that pip writes
        python_environment.install("--no-deps", f"paddlepaddle=={target.release}")
    return python_environment


def build(target: Target, site: Path, destination: Path) -> Path:
    """Builds a wheel with all instruction sets for the Paddle in ``site``; returns its path.

    Unchanged sources are not recompiled.
    """
    work = target.folder / "build"
    headers = work / "paddle_only"  # without the site's other packages, such as its setuptools
    headers.mkdir(parents=True, exist_ok=True)
    (headers / "paddle").unlink(missing_ok=True)
    (headers / "paddle").symlink_to(site / "paddle")
    variables = {
        **os.environ,
        "PYTHONPATH": str(headers),  # for setup.py to find Paddle
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # cmake and ninja
        "PADDLE_FUSED_BUILD": "portable",
        "_PYTHON_HOST_PLATFORM": f"linux-{target.processor}",  # the platform in the wheel's name
    }
    if target.emulated:
        find_tools(CROSS_TOOLS)
        toolchain = Path(__file__).with_name(f"{target.processor}.cmake")
        variables |= {"CXX": CROSS_COMPILER, "CMAKE_TOOLCHAIN_FILE": str(toolchain)}
    for left in work.glob("lib*"):  # stale modules of earlier sources
        shutil.rmtree(left)
    output = work / "made"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", output]
    command += ["build", "--build-base", work, "bdist_wheel", "--skip-build", "--dist-dir", output]
    run(command, cwd=ROOT, env=variables)
    (wheel,) = output.glob("*.whl")
    destination.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(wheel, destination))


def check_contents(wheel: Path) -> str:
    """The glibc version that the wheel's libraries require, such as 2.34; at most the build machine's.

    Raises SetupError if a library is missing or links to a Python function. (The plugin looks up Python's
    stable functions at run time.)
    """
    find_tools({"readelf": "binutils"})
    glibc = (0, 0)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in libraries.BUILT_FILES:
            if name not in archive.namelist():
                raise SetupError(f"{name} is missing in {wheel}.", "Build it again.")
            if not name.endswith(".so"):
                continue
            symbols = run(["readelf", "--dyn-syms", "--wide", archive.extract(name, folder)])
            if symbol := re.search(r" UND (_?Py\w+)", symbols):
                raise SetupError(
                    f"{name} links to {symbol[1]} of Python, but the wheel is tagged for every Python.",
                    "Remove the call, or tag the wheel for one Python in setup.py (Wheel.get_tag).",
                )
            versions = re.findall(r" UND \S+@GLIBC_(\d+)\.(\d+)", symbols)
            glibc = max([glibc, *(tuple(map(int, version)) for version in versions)])
    return ".".join(map(str, glibc))


def install(environment: Environment, wheel: Path) -> None:
    """Installs the wheel, and Paddle's own requirements in versions that the wheel accepts.

    The wheel's other requirements are skipped: the native libraries do not need them.
    """
    environment.install("--force-reinstall", "--no-deps", wheel)
    constraints = wheel.with_suffix(".constraints.txt")
    constraints.write_text("\n".join(_requirements(environment.site, "paddle-ascend-llm")) + "\n")
    # paddle.utils.cpp_extension imports setuptools, which paddlepaddle requires only from Python 3.12.
    needed = [*_requirements(environment.site, "paddlepaddle"), "setuptools"]
    try:
        environment.install("--constraint", constraints, *needed)
    finally:
        constraints.unlink()


def check(environment: Environment, target: Target, timeout: float) -> str:
    """Runs the operator on the host and on the virtual NPU, and returns a summary.

    Raises SetupError if a result is wrong. The composed operator is excluded, because Paddle's own kernels
    differ between releases and processors.
    """
    done = environment.run(*CHECK, timeout=timeout)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
        command = " ".join(CHECK)
        raise SetupError(f"`python {command}` exited with {done.returncode}:", lines) from None
    host = report["environment"]
    if (host["paddle"], host["machine"]) != target:
        raise SetupError(
            f"Paddle {host['paddle']} on {host['machine']} ran instead of {target}.",
            f"Delete {target.folder} and build again.",
        )
    ran = [
        result for result in report["results"] if not result["refused"] and result["backend"] != "composed"
    ]
    for result in ran:
        for name, tensor in result["tensors"].items():
            if tensor["max_error"] > tensor["allowed"]:
                raise SetupError(
                    f"{CHECK[2]} exceeds its error bound: {name} of {result}.", "This is a bug; report it."
                )
    where = {(result["backend"], result["device"]) for result in ran}
    if missing := {("native", "cpu"), ("native", "npu")} - where:
        raise SetupError(f"{CHECK[2]} did not run on {sorted(missing)}.", done.stderr[-2000:])
    return f"{len(ran)} results of {CHECK[2]} on cpu and npu are within their error bounds"


def _requirements(site: Path, name: str) -> list[str]:
    (distribution,) = importlib.metadata.distributions(name=name, path=[str(site)])
    return [line for line in distribution.requires or () if "extra ==" not in line]
