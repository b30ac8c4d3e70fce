"""docs/versions.md: what works on which release, written from the results."""

from __future__ import annotations

from collections.abc import Sequence

from . import REFERENCE
from .features import FEATURES
from .results import YES, Results

NOT_RUN = "not run"
BEGINNING = """# Releases of Paddle

`scripts/run_versions.py` writes this page from its results; nothing here ran on a card. On each release the
project is installed as a user would: `pip install paddlepaddle==3.0.0`, then, in a clone,
`pip install ".[paddlenlp,test]"`. Each row is tried with the command of the guide, or with the tests of the
feature. A cell says yes, with the result, or no, with the sentence that refuses or the failure.
"""
HOW = """
The rows of the operators and of the virtual NPU's runtime are tests, part of the suite. The other rows are
runs of `scripts/run_llama_npu.py` on two processes for five steps. Tensor, sequence and auto-parallel without
stages must match one process's losses to the resolution of bfloat16; the others must lower their loss. A
resumed run must end with exactly the loss of an uninterrupted one.

`python scripts/run_versions.py 3.2.2` repeats one release, and `--only 'sharding*'` some of its rows.
"""


def page(results: Sequence[Results]) -> str:
    """The whole page."""
    releases = [known.release for known in results]
    lines = [BEGINNING, _row("", releases), "|---" * (len(releases) + 1) + "|"]
    for feature in FEATURES:
        lines.append(_row(feature, [_cell(known, feature) for known in results]))
    lines += ["", "## The main job's last loss", "", _row("", releases), "|---" * (len(releases) + 1) + "|"]
    steps = sorted({int(steps) for known in results for steps in known.losses}, reverse=True)
    for number in steps:
        lines.append(_row(f"after {number} steps", [_loss(known, number, results) for known in results]))
    lines += [
        f"\nIn brackets: the difference from {REFERENCE}, on the same text.",
        "",
        "## What was run",
        "",
    ]
    lines += [_row("", releases), "|---" * (len(releases) + 1) + "|"]
    for title, name in (("commit", "commit"), ("Python", "python"), ("run", "run")):
        lines.append(_row(title, [_abouts(known, name) for known in results]))
    return "\n".join(lines) + "\n" + HOW


def missing(results: Sequence[Results]) -> dict[str, list[str]]:
    """{release: its untested features}, without the releases that are complete."""
    found = {known.release: [name for name in FEATURES if not known.outcome(name)] for known in results}
    return {release: names for release, names in found.items() if names}


def _cell(known: Results, feature: str) -> str:
    outcome = known.outcome(feature)
    if outcome is None:
        return NOT_RUN
    return f"yes ({outcome.words})" if outcome.state == YES else f"no: {outcome.words}"


def _loss(known: Results, steps: int, results: Sequence[Results]) -> str:
    """The loss and its distance, if there is one to compare with: another Python has another library."""
    found = known.losses.get(str(steps))
    if found is None:
        return NOT_RUN
    reference = next((other.losses.get(str(steps)) for other in results if other.release == REFERENCE), None)
    if known.release == REFERENCE:
        return f"{found['loss']:.4f}"
    if reference is None:
        return f"{found['loss']:.4f} ({REFERENCE} not run)"
    if reference["python"] != found["python"]:
        return f"{found['loss']:.4f} (text of Python {found['python']}, not of {reference['python']})"
    return f"{found['loss']:.4f} ({found['loss'] - reference['loss']:+.4f})"


def _abouts(known: Results, name: str) -> str:
    values = dict.fromkeys(str(feature[name]) for feature in known.features.values() if name in feature)
    return ", ".join(values) or NOT_RUN


def _row(title: str, cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells)
    return f"| {title} | {' | '.join(escaped)} |"
