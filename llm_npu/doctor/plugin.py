"""The device plugin: whether it was built for this Paddle, and whether its operators take what we pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paddle_fused

from .finding import Finding, error, ok, warning
from .probe import OPERATORS
from .setup import Setup

REBUILD = "Run `pip install .` in the project's folder (in place: `python setup.py build_native`)."
SOURCES = (".cc", ".h", ".txt", ".cmake")
NOT_BUILT = "checks"  # the kernels' own tests have a build of their own

# The operators as they are called by position: (inputs, attributes) of each form that is known.
FORMS: dict[str, dict[tuple[int, int], str]] = {
    "flash_attention_npu": {
        (7, 6): "13 arguments, lengths as tensors",
        (5, 8): "13 arguments, lengths as lists",
        (5, 5): "10 arguments, without lengths",
    },
    "rms_norm_npu": {(2, 1): ""},
    "fused_rope": {(3, 0): ""},
    "fused_mm_allreduce": {(3, 3): ""},
    "fused_allgather_mm": {(3, 5): ""},
    "fused_mm_reduce_scatter": {(3, 4): ""},
}
SAME_PADDLE = "Install the paddle-custom-npu of the version that paddlepaddle has."


def files(setup: Setup) -> Iterator[Finding]:
    """The virtual NPU: built for the Paddle that is installed, and from the sources that stand here."""
    if setup.kind != "virtual":
        return
    try:
        setup.variables_of_device()
    except RuntimeError as failure:
        yield error("plugin", str(failure), REBUILD)
        return
    except ValueError:
        return  # the check of the device has said it
    if newer := _newer_sources(Path(paddle_fused.__file__).parent):
        what = f"the virtual NPU was built before {newer[0]} was changed ({len(newer)} newer file(s))"
        yield warning("plugin", what, REBUILD)
    else:
        yield ok("plugin", "the virtual NPU was built for the Paddle that is installed")


def _newer_sources(package: Path) -> list[str]:
    """The C++ sources that were written after the last build; none where the package has no sources."""
    sources = package / "csrc"
    built = (package / "virtual_npu" / "built_for.json").stat().st_mtime
    return sorted(
        str(path.relative_to(package))
        for path in sources.rglob("*")
        if path.suffix in SOURCES
        and path.relative_to(sources).parts[0] != NOT_BUILT
        and path.stat().st_mtime > built
    )


def operators(setup: Setup) -> Iterator[Finding]:
    """The operators that a process with the plugin finds in it."""
    if setup.kind == "cpu" or not setup.probe.passed(OPERATORS):
        return  # there are none, or the check of the process has said why
    yield from judged(setup.probe.facts["operators"])


def judged(found: dict[str, dict[str, list[str]] | None]) -> list[Finding]:
    """What is to be said of the operators' inputs and attributes; None: the plugin has no such operator."""
    findings, forms = [], []
    for name, signature in found.items():
        if signature is None:
            what = f"the plugin has no operator {name}; slower compositions take its place"
            findings.append(warning("operators", what, SAME_PADDLE))
            continue
        inputs, attributes = signature["inputs"], signature["attributes"]
        form = FORMS[name].get((len(inputs), len(attributes)))
        if form is None:
            what = f"{name} takes ({', '.join([*inputs, *attributes])}), which no known form of it does"
            findings.append(error("operators", what, SAME_PADDLE))
        else:
            forms.append(f"{name} ({form})" if form else name)
    if forms:
        findings.append(ok("operators", f"as they are called here: {', '.join(forms)}"))
    return findings
