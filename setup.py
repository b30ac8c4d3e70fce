"""Builds the native code: the host kernels, their operators and the virtual NPU plugin.

`pip install .` and `pip install -e .` call it. For development, `python setup.py build_native` is an
incremental in-place build; it needs cmake and ninja, which the extra `test` installs.
"""

import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip does not add it
from building import installed_paddle, native  # noqa: E402
from paddle_fused import libraries, paddle_release  # noqa: E402

VERSION = "0.1.0"


def build(build: Path, destination: Path) -> None:
    """Build the native code; on failure, exit with a message that pip shows without a traceback."""
    try:
        native.build(ROOT, build, destination)
    except libraries.SetupError as error:
        raise SystemExit(str(error)) from None


class BuildNative(Command):
    """`python setup.py build_native`: the in-place build."""

    description = "build the native code in place"
    user_options: ClassVar[list] = []

    def initialize_options(self):
        pass

    def finalize_options(self):
        pass

    def run(self):
        build(ROOT / "build" / "native", ROOT)


class BuildExtension(build_ext):
    """The same build, run by pip for wheels and editable installs."""

    def run(self):
        in_place = self.inplace or self.editable_mode
        build(Path(self.build_temp).resolve(), ROOT if in_place else Path(self.build_lib).resolve())

    def get_outputs(self):
        base = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        return [str(base / file) for file in libraries.BUILT_FILES]

    def get_output_mapping(self):
        return {}


class Wheel(bdist_wheel):
    """Tagged for one platform and every Python 3: the libraries do not link to Python."""

    def get_tag(self):
        *python, platform = super().get_tag()
        return ("py3", "none", platform) if with_native else (*python, platform)


def requirements(with_native: bool) -> list[str]:
    """Requirements in addition to pyproject.toml's; none of them replaces the installed Paddle."""
    version = installed_paddle.version()
    if with_native:
        paddle = f"paddlepaddle=={version}"  # the libraries depend on private struct layouts
    else:
        paddle = f"paddlepaddle>={'.'.join(map(str, paddle_release.OLDEST))},<3.4"
    needed = [
        paddle,
        "numpy>=1.24,<2",
        "setuptools",  # paddle.utils.cpp_extension imports it
        "safetensors",
        "matplotlib",
        "pyyaml",
        "rich",
        "jinja2",  # chat templates
        "packaging",  # the doctor reads pins with it
        "pyelftools>=0.30",  # symbols of CANN and of the plugin
    ]
    # Newer versions: "tensor_parallel_configs is not a attribute of DistributedStrategy".
    if paddle_release.number(version) < (3, 3, 0):
        needed.append("protobuf<6")
    elif paddle_release.number(version) < (3, 3, 1):
        needed.append("protobuf<7")
    return needed


try:
    with_native = native.is_wanted()
    needed = requirements(with_native)
except libraries.SetupError as error:
    raise SystemExit(str(error)) from None

setup(
    # The version that pip shows states the Paddle release of the build.
    version=f"{VERSION}+paddle{installed_paddle.version()}" if with_native else f"{VERSION}+python",
    install_requires=needed,
    # A placeholder without a Python module, which makes the wheel platform-specific.
    ext_modules=[Extension("paddle_fused.lib.native", sources=[])] if with_native else [],
    cmdclass={"build_ext": BuildExtension, "build_native": BuildNative, "bdist_wheel": Wheel},
    package_data={
        "paddle_fused": ["*.pyi", *(["lib/*.so"] if with_native else [])],
        "virtual_npu": ["data/*.json", *(["plugin/*.so", "*.json"] if with_native else [])],
        "llm_npu": [
            *(f"{room}/data/*.json" for room in ("acceptance", "cann", "doctor", "core", "plan")),
            "cann/data/*.c",
        ],
    },
)
