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
FRAMEWORKS = ("paddlepaddle", *library.LIBRARIES)  # private names move between their versions
INSTALL = "Run `pip install '.[paddlenlp]'` or `pip install '.[paddleformers]'` in the project's folder."


def python(setup: Setup) -> Iterator[Finding]:
    """Version of Python, system and machine.

    A problem: a Python that the project does not accept; another system than 64-bit Linux.
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
    """The versions of Python that the project accepts; None if the project is not installed."""
    project = _installed()
    if project is None:
        return None
    # A late import: it may be missing in the project's environment.
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(project.metadata["Requires-Python"])


def _installed() -> metadata.Distribution | None:
    """The installed project, ignoring metadata that a build leaves in a clone."""
    distributions = metadata.distributions(name=PROJECT, path=libraries.search_path())
    return next(iter(distributions), None)


def code(setup: Setup) -> Iterator[Finding]:
    """In a clone, its Python code against what is installed.

    A problem: other code: `python -m` runs the clone's, scripts run what is installed.
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
        yield ok("code", f"the code in {here} is the one installed in {there}")


def _same(file: Path, other: Path) -> bool:
    return other.is_file() and file.read_bytes() == other.read_bytes()


def pins(setup: Setup) -> Iterator[Finding]:
    """The installed packages against the project's requirements, by their metadata.

    Those of the extra count, too, whose library of models is installed.

    A problem: a missing package; paddlepaddle, paddlenlp or paddleformers in another version (a warning for
    others); neither library of models, without which nothing trains (a warning: the operators work).
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
        return error("packages", f"{requirement.name} is not installed; needed: {requirement}", fix)
    if requirement.specifier.contains(version, prereleases=True):
        return None
    judge = error if requirement.name in FRAMEWORKS else warning
    return judge("packages", f"{requirement.name} is {version}; needed: {requirement}", fix)


CHECKS = {"python": python, "packages": pins, "code": code}
