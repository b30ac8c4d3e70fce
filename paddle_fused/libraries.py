"""Locates the native libraries, in these packages or in installed packages that these packages shadow.

``python -m`` and ``python -c`` search the current folder first. In a clone, they import the clone's packages
even after ``pip install .``, which puts the libraries into the installed package only. The installed
libraries are used if their stamp file shows that they were built from the clone's sources. Otherwise, the
error names the folder and the installation that it shadows.

Imports only the standard library, because setup.py uses this module.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from pathlib import Path

BUILT_FILES = KERNELS, OPERATORS, PLUGIN, STAMP = (
    "paddle_fused/lib/libpaddle_fused_kernels.so",
    "paddle_fused/lib/libpaddle_fused_ops.so",
    "virtual_npu/plugin/libpaddle-custom-npu.so",
    "virtual_npu/built_for.json",
)
PACKAGES = ("paddle_fused", "virtual_npu")  # with C++ sources
ROOT = Path(__file__).resolve().parents[1]  # the folder that contains these packages
SOURCES = (".cc", ".h", ".S", ".cmake", ".txt", ".py")
NOT_BUILT = "checks"  # the kernel tests have their own build


class SetupError(RuntimeError):
    """The libraries cannot be used. ``message`` states the problem, ``fix`` the remedy, in full sentences."""

    def __init__(self, message: str, fix: str):
        super().__init__(f"{message} {fix}")
        self.message, self.fix = message, fix


@functools.cache
def folder() -> Path:
    """The folder of the packages whose libraries this process uses, built or not."""
    hidden = shadowed_installation()
    if hidden is None:
        return ROOT
    sources = sources_digest()
    if is_built() and _built_from(ROOT) == sources:
        return ROOT
    return hidden if _built_from(hidden) == sources else ROOT


@functools.cache
def shadowed_installation() -> Path | None:
    """The folder of installed packages, with libraries, that these sources shadow, or None."""
    if not _has_sources():
        return None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)  # includes the finder of an editable installation
        spec = find and find(PACKAGES[0], search_path())
        if spec and spec.origin:
            root = Path(spec.origin).resolve().parents[1]
            return root if root != ROOT and is_built(root) else None
    return None


def search_path() -> list[str]:
    """``sys.path`` without the folder of these sources; unchanged in an installation."""
    return [entry for entry in sys.path if not _has_sources() or not _holds_these_packages(entry)]


def virtual_npu_is_active() -> bool:
    """Whether Paddle's device ``npu`` is the virtual NPU of these packages (CUSTOM_DEVICE_ROOT)."""
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    return root != "" and Path(root).resolve() == (folder() / PLUGIN).parent


def _holds_these_packages(entry: str) -> bool:
    try:
        return Path(entry).resolve() == ROOT
    except FileNotFoundError:  # a relative entry after the current folder was deleted
        return False


def is_built(root: Path = ROOT) -> bool:
    """Whether all files of a build exist."""
    return all((root / file).is_file() for file in BUILT_FILES)


def is_outdated() -> bool:
    """Whether the libraries were built from sources other than the current ones."""
    return folder() == ROOT and _has_sources() and _built_from(ROOT) != sources_digest()


def sources_digest(root: Path = ROOT) -> str:
    """The SHA-256 of the names and contents of all source files of the libraries."""
    operators = root / "paddle_fused"
    files = [*(operators / "contracts").glob("*.py"), *(operators / "ops").glob("*/*contract.py")]
    files += (root / "virtual_npu" / "data").glob("*.json")
    for package in PACKAGES:
        sources = root / package / "csrc"
        files += [
            file
            for file in sources.rglob("*")
            if file.suffix in SOURCES and file.relative_to(sources).parts[0] != NOT_BUILT
        ]
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def check_built(*files: Path) -> None:
    """Raises SetupError if one of ``files`` is missing. Default: all build products."""
    for file in files or [folder() / name for name in BUILT_FILES]:
        if not file.is_file():
            what = f"The native libraries are not built: {file} is missing."
            if hidden := _unfit_installation():
                what += f" {ROOT} shadows the installation in {hidden}, and "
                what += "their C++ sources differ."
            raise SetupError(what, how_to_build())


def how_to_build() -> str:
    """The command that builds matching libraries, as one sentence."""
    sources = ROOT
    if not _has_sources():
        fix = "Run `pip install .` in the project's folder"
        # Installed without libraries: repeating the same command would skip them again.
        return f"{fix}." if is_built() else f"{fix}, with g++ installed and without PADDLE_FUSED_BUILD=off."
    if folder() == ROOT and is_built():
        return f"Run `pip install -e .` in {sources} (with cmake and ninja: `python setup.py build_native`)."
    fix = f"Run `pip install .` in {sources}"
    if _unfit_installation():
        fix += ". To use the installed package, run from another folder and remove this one from PYTHONPATH"
    return f"{fix}."


def _unfit_installation() -> Path | None:
    """The installation that these unbuilt sources shadow, if it was built from different sources."""
    return shadowed_installation() if folder() == ROOT and not is_built() else None


def _has_sources() -> bool:
    return (ROOT / PACKAGES[0] / "csrc").is_dir()


def _built_from(root: Path) -> str | None:
    try:
        return json.loads((root / STAMP).read_text(encoding="utf-8"))["sources"]
    except (OSError, ValueError, KeyError, TypeError):  # missing, or written by an older build
        return None
