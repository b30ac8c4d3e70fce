"""The documentation page of the sweep, from the cases, the known differences and the measured placements."""

from __future__ import annotations

from collections import Counter

from places import ROOT

from api_sweep.case import NO_GRADIENT, Case
from api_sweep.differences import BY_CASE, DIFFERENCES, NOT_ON_CPU
from api_sweep.families import CASES, FAMILIES

PATH = ROOT / "build/pages/api_sweep.md"  # the documentation's build shows what is there
COLUMNS = ("API", "forward", "backward", "cases", "remarks")
ON_A_CARD = "on a card"
INTRODUCTION = """\
# Paddle's public APIs on npu

`tests/virtual_npu/test_api_sweep.py` runs every case twice in one process, on the CPU place and on `npu`
(the virtual device), with the same inputs and the same seed. "equal" means the same shapes, dtypes and bits
(NaN equals NaN) in all outputs, and in the gradients of all floating-point inputs and parameters under
fixed pseudo-random cotangents; outputs and gradients must be on npu. Inputs are float32, small and of odd
sizes. Further calls of the same API stand in brackets: other arguments, `0-d` and `empty` inputs, non-
contiguous (`strided`) inputs, and the call compiled by `paddle.jit.to_static`."""
WITH_PLACEMENTS = """\
The column "on a card" tells where the public paddle-custom-npu would run the API's kernels: on the card
(`npu`), or which kernels fall back to the host's CPU because that plugin registers none (for float32,
unless another dtype is named). It comes from the plugin's source code of October 2024, which is older than
some kernels of Paddle 3.3.1; nothing was measured on a card."""
WITHOUT_PLACEMENTS = """\
`python tests/virtual_npu/api_sweep/report.py` runs the sweep and adds a column with the kernels that a card
would leave to the host's CPU."""


def document(placements: dict[str, str] | None = None) -> str:
    """The whole page; ``placements``: where a card would run each API, the last column."""
    explained = WITHOUT_PLACEMENTS if placements is None else WITH_PLACEMENTS
    parts = [INTRODUCTION, explained, _counts(), _differences(), _not_on_cpu()]
    parts += [_family(title, by_api, placements) for title, by_api in _grouped().items()]
    return "\n\n".join(parts) + "\n"


def _counts() -> str:
    apis = {case.api for case in CASES}
    backward = {case.api for case in CASES if case.compares_gradient}
    static = {case.api for case in CASES if case.static}
    different = {case.api for case in CASES if case.id in BY_CASE}
    equal = len(apis) - len(different)
    return (
        f"**{len(apis)} public APIs in {len(CASES)} cases: {equal} equal, {len(different)} not.**\n"
        f"The gradients of {len(backward)} APIs are compared, and {len(static)} APIs also when compiled by\n"
        f"`paddle.jit.to_static`. {len(NOT_ON_CPU)} more do not run on the CPU place: nothing to compare to."
    )


def _differences() -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name in difference.cases)} | {_cell(difference.reason)} |"
        for difference in DIFFERENCES
    ]
    return "\n".join(["## What differs from the CPU place", "", "| case | reason |", "|---|---|", *rows])


def _not_on_cpu() -> str:
    names = [f"- `{entry.case.api}`" for entry in NOT_ON_CPU]
    return "\n".join(
        ["## Nothing to compare with: upstream Paddle does not run these on the CPU place", "", *names]
    )


def _grouped() -> dict[str, dict[str, list[Case]]]:
    """The cases by family and API; an API of several families is listed in the first."""
    home = {case.api: title for title, cases in reversed(FAMILIES.items()) for case in cases}
    grouped: dict[str, dict[str, list[Case]]] = {title: {} for title in FAMILIES}
    for case in CASES:
        grouped[home[case.api]].setdefault(case.api, []).append(case)
    return grouped


def _family(title: str, by_api: dict[str, list[Case]], placements: dict[str, str] | None) -> str:
    head, rows = [*COLUMNS], [_row(api, cases) for api, cases in by_api.items()]
    if placements is not None:
        head.append(ON_A_CARD)
        rows = [[*row, placements[api]] for row, api in zip(rows, by_api, strict=True)]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([f"## {title}", "", *lines])


def _row(api: str, cases: list[Case]) -> list[str]:
    differs = any(case.id in BY_CASE for case in cases)
    forward = "differs" if differs else "equal"
    backward = forward if any(case.compares_gradient for case in cases) else "-"
    variants = "; ".join(case.variant for case in cases if case.variant)
    remarks = {case.why_forward_only for case in cases if case.why_forward_only not in ("", NO_GRADIENT)}
    remarks |= {case.host_outputs for case in cases if case.host_outputs}
    remarks |= {f"within {case.ulps} float32 roundings: {case.why_tolerance}" for case in cases if case.ulps}
    calls = f"{len(cases)} ({_cell(variants)})" if variants else f"{len(cases)}"
    return [f"`{api}`", forward, backward, calls, _cell("; ".join(sorted(remarks)))]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def duplicates() -> list[str]:
    """Case ids that are not unique, which would hide one case behind another."""
    return [name for name, number in Counter(case.id for case in CASES).items() if number > 1]
