"""Locates the native libraries: in this package, or in an installed package that this one shadows.

``python -m`` and ``python -c`` search the current folder first. In a clone they import the clone's packages,
although after ``pip install .`` only the installed package has the libraries. These are used if they were
built from exactly the sources of the clone, according to their stamp file. Otherwise the error says which
folder shadows which installation.

Imports only the standard library, because setup.py uses this module.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from pathlib import Path

BUILT_FILES = KERNELS, OPERATORS, PLUGIN, STAMP = (
    "lib/libpaddle_fused_kernels.so",
    "lib/libpaddle_fused_ops.so",
    "virtual_npu/plugin/libpaddle-custom-npu.so",
    "virtual_npu/built_for.json",
)
PACKAGE = Path(__file__).resolve().parent
SOURCES = (".cc", ".h", ".S", ".cmake", ".txt", ".py")
NOT_BUILT = "checks"  # the kernels' tests have their own build


class SetupError(RuntimeError):
    """The libraries cannot be used. ``what``: the problem; ``cure``: the remedy. Both are full sentences."""

    def __init__(self, what: str, cure: str):
        super().__init__(f"{what} {cure}")
        self.what, self.cure = what, cure


@functools.cache
def folder() -> Path:
    """The folder of the package whose libraries this process uses, whether or not they are built."""
    hidden = hidden_package()
    if hidden is None:
        return PACKAGE
    sources = sources_digest()
    if is_built() and _built_from(PACKAGE) == sources:
        return PACKAGE
    return hidden if _built_from(hidden) == sources else PACKAGE


@functools.cache
def hidden_package() -> Path | None:
    """The installed package with libraries that these sources shadow, or None."""
    if not _has_sources():
        return None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)  # the finder of an editable installation is one of them
        spec = find and find(PACKAGE.name, search_path())
        if spec and spec.origin:
            package = Path(spec.origin).resolve().parent
            return package if package != PACKAGE and is_built(package) else None
    return None


def search_path() -> list[str]:
    """``sys.path`` without the folder of these sources; unchanged in an installed package."""
    return [entry for entry in sys.path if not _has_sources() or not _holds_this_package(entry)]


def _holds_this_package(entry: str) -> bool:
    try:
        return Path(entry).resolve() == PACKAGE.parent
    except FileNotFoundError:  # a relative entry, and the current folder has been deleted
        return False


def is_built(package: Path = PACKAGE) -> bool:
    """Whether all files of a build exist."""
    return all((package / file).is_file() for file in BUILT_FILES)


def is_outdated() -> bool:
    """Whether the libraries were built from sources other than the current ones."""
    return folder() == PACKAGE and _has_sources() and _built_from(PACKAGE) != sources_digest()


def sources_digest(package: Path = PACKAGE) -> str:
    """The SHA-256 of the names and contents of all source files of the libraries."""
    files = [*(package / "contracts").glob("*.py"), *(package / "ops").glob("*/*contract.py")]
    files += (package / "data").glob("*.json")
    for file in (package / "csrc").rglob("*"):
        if file.suffix in SOURCES and file.relative_to(package / "csrc").parts[0] != NOT_BUILT:
            files.append(file)
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def check_built(*files: Path) -> None:
    """Raises SetupError if one of ``files`` is missing. Default: all files of a build."""
    for file in files or [folder() / name for name in BUILT_FILES]:
        if not file.is_file():
            what = f"The native libraries are not built: {file} is missing."
            if hidden := _unfit_installation():
                what += f" {PACKAGE.parent} hides the installation in {hidden.parent}, and "
                what += "the C++ sources of the two differ."
            raise SetupError(what, how_to_build())


def how_to_build() -> str:
    """The command that builds libraries that fit, as one sentence."""
    sources = PACKAGE.parent
    if not _has_sources():
        cure = "Run `pip install .` in the project's folder"
        # Installed without libraries: the same command alone would skip them again.
        return f"{cure}." if is_built() else f"{cure}, with g++ there and without PADDLE_FUSED_BUILD=off."
    if folder() == PACKAGE and is_built():
        return f"Run `pip install -e .` in {sources} (with cmake and ninja: `python setup.py build_native`)."
    cure = f"Run `pip install .` in {sources}"
    if _unfit_installation():
        cure += ", or the command in another folder, without this one in PYTHONPATH, to use what is installed"
    return f"{cure}."


def _unfit_installation() -> Path | None:
    """The installed package that these sources shadow, if it was built from others and this one is not."""
    return hidden_package() if folder() == PACKAGE and not is_built() else None


def _has_sources() -> bool:
    return (PACKAGE / "csrc").is_dir()


def _built_from(package: Path) -> str | None:
    try:
        return json.loads((package / STAMP).read_text(encoding="utf-8"))["sources"]
    except (OSError, ValueError, KeyError, TypeError):  # written by an older build, or missing
        return None
