"""All checks; causes are checked before their consequences."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

from ..finding import Finding, error
from ..setup import Setup
from . import ascend, device, hccl, packages, resources

Check = Callable[[Setup], Iterable[Finding]]

# Each module lists its checks in ``CHECKS``, by the name of their findings. A check's docstring becomes its
# row in the documentation.
MODULES = (packages, device, ascend, hccl, resources)
CHECKS: dict[str, Check] = {name: check for module in MODULES for name, check in module.CHECKS.items()}
assert len(CHECKS) == sum(len(module.CHECKS) for module in MODULES), "two checks have the same name"


def described() -> Iterator[tuple[str, str, str]]:
    """Each check's name, and its subject and problems from its docstring."""
    for name, check in CHECKS.items():
        looks_at, problem = inspect.getdoc(check).split("\n\nA problem: ")
        yield name, *(" ".join(part.split()).removesuffix(".") for part in (looks_at, problem))


def examine(setup: Setup) -> list[Finding]:
    """The findings of every check. A crash of a check is a finding, and does not stop other checks."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            findings += check(setup)
        except ModuleNotFoundError as missing:
            what = f"the check did not run: the package {missing.name} is not installed"
            findings.append(error(name, what, packages.INSTALL))
        except Exception as failure:  # a failure here must not hide the other findings
            what = f"the check did not run: {type(failure).__name__}: {failure}"
            findings.append(error(name, what, "Report this line to the authors of this project."))
    return findings
