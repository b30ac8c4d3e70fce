"""All checks, in the order in which one cause hides the next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

from ..finding import Finding, error
from ..setup import Setup
from . import ascend, devices, environment, hccl, operators, packages, pairs, plugin, process, resources

Check = Callable[[Setup], Iterable[Finding]]

# Each module says which checks it has, in ``CHECKS``: the name that findings have, and the function, whose
# docstring is its row in the documentation.
MODULES = (packages, devices, plugin, process, operators, ascend, pairs, environment, hccl, resources)
CHECKS: dict[str, Check] = {name: check for module in MODULES for name, check in module.CHECKS.items()}


def described() -> Iterator[tuple[str, str, str]]:
    """Of each check: its name, what it looks at and what is a problem, as its docstring has it."""
    for name, check in CHECKS.items():
        looks_at, problem = inspect.getdoc(check).split("\n\nA problem: ")
        yield name, *(" ".join(part.split()).removesuffix(".") for part in (looks_at, problem))


def examine(setup: Setup) -> list[Finding]:
    """The findings of every check. A check that fails itself is a finding, and hides none of the others."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            findings += check(setup)
        except ModuleNotFoundError as missing:
            what = f"it could not be examined: the package {missing.name} is not installed"
            findings.append(error(name, what, packages.INSTALL))
        except Exception as failure:  # whatever is broken here must not hide the rest
            what = f"it could not be examined: {type(failure).__name__}: {failure}"
            findings.append(error(name, what, "Report it, with this line, to the authors of this project."))
    return findings
