"""The text of docs/api_sweep.md, from the cases, the known differences and the measured placements."""

from __future__ import annotations

import re
from collections import Counter

from places import ROOT

from api_sweep.case import NO_GRADIENT, Case
from api_sweep.differences import BY_CASE, DIFFERENCES, NOT_ON_CPU
from api_sweep.families import CASES, FAMILIES

PATH = ROOT / "docs" / "api_sweep.md"
COLUMNS = "| API | forward | backward | cases | remarks | on a card |\n|---|---|---|---|---|---|"
INTRODUCTION = """\
# Public Paddle APIs on npu and on the CPU place

Written by `python tests/virtual_npu/api_sweep/report.py`; `tests/virtual_npu/test_api_sweep.py` makes the
same comparison. Every case runs once on the CPU place and once on `npu` (the virtual device), in one process,
from the same inputs and the same seed. "equal" means the same shapes, dtypes and bits (NaN equal to NaN): in
all outputs, and in the gradients of all floating point inputs and parameters under fixed pseudo-random
cotangents; both must be on npu. Inputs are float32, small and of odd sizes. In brackets stand further calls
of the same API: other arguments, `0-d` and `empty` inputs, non-contiguous (`strided`) inputs, and the call
compiled by `paddle.jit.to_static`.

"On a card" tells where the public paddle-custom-npu would run the API's kernels: on the card (`npu`), or
which of them fall back to the host's CPU because that plugin registers no such kernel (for float32, unless
another dtype is named). It comes from that plugin's source code of October 2024, which is older than some
kernels of Paddle 3.3.1; nothing was measured on a card."""


def document(placements: dict[str, str]) -> str:
    """The whole document; ``placements`` gives the last column by API."""
    parts = [INTRODUCTION, _counts(), _differences(), _not_on_cpu()]
    parts += [_family(title, by_api, placements) for title, by_api in _grouped().items()]
    return "\n\n".join(parts) + "\n"


def placements_in(text: str) -> dict[str, str]:
    """The measured last column of a document written before."""
    rows = re.findall(r"^\| `([^`]+)` \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    return dict(rows)


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
        ["## What stock Paddle does not run on the CPU place, so that nothing can be compared", "", *names]
    )


def _grouped() -> dict[str, dict[str, list[Case]]]:
    """The cases by family and API; an API that occurs in several families stands in the first."""
    home = {case.api: title for title, cases in reversed(FAMILIES.items()) for case in cases}
    grouped: dict[str, dict[str, list[Case]]] = {title: {} for title in FAMILIES}
    for case in CASES:
        grouped[home[case.api]].setdefault(case.api, []).append(case)
    return grouped


def _family(title: str, by_api: dict[str, list[Case]], placements: dict[str, str]) -> str:
    rows = [_row(api, cases, placements.get(api, "")) for api, cases in by_api.items()]
    return "\n".join([f"## {title}", "", COLUMNS, *rows])


def _row(api: str, cases: list[Case], placement: str) -> str:
    differs = any(case.id in BY_CASE for case in cases)
    forward = "differs" if differs else "equal"
    backward = forward if any(case.compares_gradient for case in cases) else "-"
    variants = "; ".join(case.variant for case in cases if case.variant)
    remarks = {case.why_forward_only for case in cases if case.why_forward_only not in ("", NO_GRADIENT)}
    remarks |= {case.host_outputs for case in cases if case.host_outputs}
    remarks |= {f"within {case.ulps} float32 roundings: {case.why_tolerance}" for case in cases if case.ulps}
    calls = f"{len(cases)} ({_cell(variants)})" if variants else f"{len(cases)}"
    return (
        f"| `{api}` | {forward} | {backward} | {calls} | {_cell('; '.join(sorted(remarks)))} | {placement} |"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def duplicates() -> list[str]:
    """Case ids that are not unique, which would hide one case behind another."""
    return [name for name, number in Counter(case.id for case in CASES).items() if number > 1]
