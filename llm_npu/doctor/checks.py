"""All checks, in the order in which one cause hides the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import ascend, devices, environment, hccl, packages, pairs, plugin, process, resources
from .finding import Finding, error
from .setup import Setup

Check = Callable[[Setup], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    "python": packages.python,
    "packages": packages.pins,
    "code": packages.code,
    "device": devices.chosen,
    "plugin": plugin.files,
    "process": process.stages,
    "operators": plugin.operators,
    "cann": ascend.cann,
    "driver": ascend.driver,
    "pairs": pairs.versions,
    "mc2": pairs.mc2,
    "variables": environment.variables,
    "hccl": hccl.values,
    "memory": resources.memory,
    "disk": resources.disk,
    "threads": resources.threads,
    "kernels": resources.instruction_set,
}


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
