"""Python and the packages, from their metadata; nothing is imported."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from llm_npu.models import library
from paddle_fused import libraries

from ..finding import Finding, error, ok, warning
from ..setup import Setup

PROJECT = "paddle-ascend-llm"
PACKAGES = ("paddle_fused", "virtual_npu", "llm_npu")
FRAMEWORKS = ("paddlepaddle", *library.LIBRARIES)  # pinned, because private names change between versions
INSTALL = "Run `pip install '.[paddlenlp]'` or `pip install '.[paddleformers]'` in the project's folder."


def python(setup: Setup) -> Iterator[Finding]:
    """The version of Python, the system and the machine.

    A problem: a Python version that the project does not support; a system other than 64-bit Linux.
    """
    version = platform.python_version()
    interpreter = f"CPython {version} on {platform.system()} {platform.machine()}, {sys.executable}"
    accepted = _requires_python()
    if platform.system() != "Linux" or sys.maxsize < 2**32:
        yield error("python", f"{interpreter}; accepted: 64-bit Linux", "Use a 64-bit Linux machine.")
    elif accepted is not None and version not in accepted:
        fix = f"Create an environment with Python {accepted} (python3.11 -m venv .venv) and install there."
        yield error("python", f"{interpreter}; accepted: {accepted}", fix)
    else:
        yield ok("python", interpreter)


def _requires_python():
    """The Python versions that the project supports; None if the project is not installed."""
    project = _installed()
    if project is None:
        return None
    # Imported late: the package may be missing in the project's environment.
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(project.metadata["Requires-Python"])


def _installed() -> metadata.Distribution | None:
    """The installed project. Metadata that a build leaves in a clone is ignored."""
    distributions = metadata.distributions(name=PROJECT, path=libraries.search_path())
    return next(iter(distributions), None)


def code(setup: Setup) -> Iterator[Finding]:
    """In a clone, its Python code compared with the installed code.

    A problem: they differ. `python -m` then runs the clone, but scripts run the installed code.
    """
    hidden = libraries.shadowed_installation()
    if hidden is None:
        return
    here, there = libraries.ROOT, hidden
    modules = [file.relative_to(here) for package in PACKAGES for file in (here / package).rglob("*.py")]
    other = sorted(
        file for file in modules if "csrc" not in file.parts and not _same(here / file, there / file)
    )
    if other:
        what = f"`python -m` runs the code in {here}, and the installed code in {there} differs: {other[0]}"
        what += f" and {len(other) - 1} more" if len(other) > 1 else ""
        yield warning("code", what, f"Run `pip install .` in {here}, so that scripts run the same code.")
    else:
        yield ok("code", f"the code in {here} equals the code installed in {there}")


def _same(file: Path, other: Path) -> bool:
    return other.is_file() and file.read_bytes() == other.read_bytes()


def pins(setup: Setup) -> Iterator[Finding]:
    """The installed packages compared with the project's requirements, based on metadata.

    Requirements of an extra are included if its model library is installed.

    A problem: a missing package; a different version of paddlepaddle, paddlenlp or paddleformers (a warning
    for other packages); no model library, which training needs (a warning, because the operators work without
    it).
    """
    project = _installed()
    if project is None:
        fix = f"Activate its environment (`. .venv/bin/activate`). If there is none: {INSTALL}"
        yield error("packages", f"this project, {PROJECT}, is not installed for {sys.executable}", fix)
        return
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in project.requires or ()]
    models = library.installed_or_none()
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": models or ""})]
    for requirement in needed:
        requirement.marker = None  # pip must not see "; extra == ..."
    findings = [finding for requirement in needed if (finding := _judged(requirement))]
    if models is None:
        findings.append(warning("packages", "neither paddlenlp nor paddleformers is installed", INSTALL))
    yield from findings
    if not findings:
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("paddlepaddle", models))
        yield ok("packages", f"{versions}; all {len(needed)} requirements are met")


def _judged(requirement) -> Finding | None:
    fix = f"Run `pip install '{requirement}'`."
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return error("packages", f"{requirement.name} is not installed; required: {requirement}", fix)
    if requirement.specifier.contains(version, prereleases=True):
        return None
    judge = error if requirement.name in FRAMEWORKS else warning
    return judge("packages", f"{requirement.name} is {version}; required: {requirement}", fix)


CHECKS = {"python": python, "packages": pins, "code": code}
