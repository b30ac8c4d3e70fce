"""The operators of the device plugin: whether their signatures match our calls."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Finding, error, ok, warning
from ..probe import OPERATORS
from ..setup import Setup

# Operators called by position: (inputs, attributes) of each known signature.
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
SAME_PADDLE = "Install paddle-custom-npu in the version of paddlepaddle."


def operators(setup: Setup) -> Iterator[Finding]:
    """Inputs and attributes of the plugin's operators.

    A problem: an operator that is missing, or that takes other arguments than in any public version.
    """
    facts = setup.probe.facts
    if setup.kind == "cpu" or not setup.probe.passed(OPERATORS) or facts.get("computed_on") == "cpu":
        return  # no plugin, or a broken one; the checks of plugin and process have reported why
    yield from judged(facts["operators"])


def judged(found: dict[str, dict[str, list[str]] | None]) -> list[Finding]:
    """The finding on the operators' inputs and attributes; None: the plugin does not have the operator."""
    findings, forms = [], []
    for name, signature in found.items():
        if signature is None:
            what = f"the plugin has no operator {name}; a slower composition replaces it"
            findings.append(warning("operators", what, SAME_PADDLE))
            continue
        inputs, attributes = signature["inputs"], signature["attributes"]
        form = FORMS[name].get((len(inputs), len(attributes)))
        if form is None:
            what = f"{name} takes ({', '.join([*inputs, *attributes])}), which matches no known signature"
            findings.append(error("operators", what, SAME_PADDLE))
        else:
            forms.append(f"{name} ({form})" if form else name)
    if forms:
        findings.append(ok("operators", f"signatures as expected: {', '.join(forms)}"))
    return findings


CHECKS = {"operators": operators}
