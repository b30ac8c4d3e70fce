"""Builds the native code: the host kernels, their operators and the virtual NPU plugin.

`pip install .` and `pip install -e .` call it. While developing, `python setup.py build_native` builds in
place and compiles only what changed; it needs cmake and ninja, which the extra `test` installs.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip leaves it out
from paddle_fused import libraries  # noqa: E402


class BuildError(SystemExit):
    """Ends the build with one sentence; pip shows it without a traceback."""


def find_paddle() -> Path:
    """The installed paddle package, found without importing it: that takes seconds and loads plugins."""
    spec = importlib.util.find_spec("paddle")
    if spec is None or spec.origin is None:
        raise BuildError("paddlepaddle is not installed in the build environment; its headers are needed.")
    return Path(spec.origin).parent


def paddle_build(paddle: Path) -> tuple[str, str]:
    """Version and commit of the installed Paddle: the plugin relies on its private layouts."""
    fields = {}
    for line in (paddle / "version" / "__init__.py").read_text().splitlines():
        name, sign, value = line.partition("=")
        if sign and name.strip() in ("full_version", "commit"):
            fields[name.strip()] = value.strip().strip("'\"")
    return fields["full_version"], fields["commit"]


def check_tools() -> None:
    compiler = shlex.split(os.environ.get("CXX", "g++"))[0]  # CXX may hold arguments, or a launcher before it
    compiler_advice = "Install one (Debian and Ubuntu: apt-get install g++) or name it in the variable CXX."
    advice = "It is a build requirement of this project: build with pip, or run `pip install cmake ninja`."
    for tool, what_to_do in ((compiler, compiler_advice), ("cmake", advice), ("ninja", advice)):
        if shutil.which(tool) is None:
            raise BuildError(f"The native code cannot be built: no `{tool}` was found. {what_to_do}")


def build_native(source: Path, build: Path, destination: Path) -> None:
    """Configures, compiles and installs the libraries below `destination`."""
    check_tools()
    paddle = find_paddle()
    version, commit = paddle_build(paddle)
    sources = libraries.sources_digest(source / "paddle_fused")  # before they are read by the compiler
    configure = ["cmake", "-S", str(source / "paddle_fused" / "csrc"), "-B", str(build), "-G", "Ninja"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DPADDLE_DIR={paddle}"]
    configure += [
        f"-DPADDLE_VERSION={version}",
        f"-DPADDLE_COMMIT={commit}",
        f"-DPython3_EXECUTABLE={sys.executable}",
    ]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            errors = [
                line for line in done.stdout.splitlines() if re.search(r"\berror\b:|CMake Error", line)
            ] or done.stdout.splitlines()
            raise BuildError(
                f"The native code did not compile ({' '.join(command[:2])} ended with {done.returncode}): "
                + "\n".join(errors[:12])
            )
    *built, stamp_file = (destination / "paddle_fused" / file for file in libraries.BUILT_FILES)
    for target in built:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A process may have the old library in use: give its name to a new file, do not write into it.
        fresh = target.with_suffix(".new")
        shutil.copy2(build / target.name, fresh)
        fresh.replace(target)
    stamp = {"paddle_version": version, "paddle_commit": commit, "sources": sources}
    stamp_file.write_text(json.dumps(stamp) + "\n")


class BuildNative(Command):
    """`python setup.py build_native`: build in place."""

    description = "build the native code in place"
    user_options: ClassVar[list] = []

    def initialize_options(self):
        pass

    def finalize_options(self):
        pass

    def run(self):
        build_native(ROOT, ROOT / "build" / "native", ROOT)


class BuildExtension(build_ext):
    """The same build, called by pip for wheels and for editable installs."""

    def run(self):
        in_place = self.inplace or self.editable_mode
        build_native(
            ROOT, Path(self.build_temp).resolve(), ROOT if in_place else Path(self.build_lib).resolve()
        )

    def get_outputs(self):
        base = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        return [str(base / "paddle_fused" / file) for file in libraries.BUILT_FILES]

    def get_output_mapping(self):
        return {}


setup(
    # The extension has no Python module: it marks the wheel as belonging to one platform.
    ext_modules=[Extension("paddle_fused.lib.native", sources=[])],
    cmdclass={"build_ext": BuildExtension, "build_native": BuildNative},
    package_data={
        "paddle_fused": ["data/*.json", "lib/*.so", "virtual_npu/plugin/*.so", "virtual_npu/*.json"],
        "llm_npu": ["doctor/data/*.json", "plan/data/*.json"],
    },
)
