"""How the cost of an operator grows with one of its sizes, measured and in the cost model."""

from __future__ import annotations

from benchmarks.report import milliseconds
from benchmarks.work import OPERATORS

from .cases import Case

# (operator, growing size): sizes, one line per point.
FAMILIES = {
    ("rms_norm", "T"): [(tokens, 4096) for tokens in (1024, 2048, 4096, 8192)],
    ("rms_norm", "H"): [(4096, hidden) for hidden in (1024, 2048, 4096, 8192)],
    ("swiglu", "T"): [(tokens, 5504) for tokens in (1024, 2048, 4096)],
    ("adamw", "L"): [(layers, 1024, 2816) for layers in (1, 2, 4, 8)],
    ("attention", "S"): [(tokens, 4, 128, "causal") for tokens in (512, 1024, 2048, 4096)],
    ("attention", "N"): [(1024, heads, 128, "causal") for heads in (2, 4, 8, 16)],
    ("attention", "D"): [(1024, 8, head_dim, "causal") for head_dim in (32, 64, 128)],
    ("linear_cross_entropy", "V"): [(512, 1024, vocabulary) for vocabulary in (4000, 8000, 16000)],
    ("moe", "T"): [(tokens, 512, 1024, 8, 2) for tokens in (512, 1024, 2048)],
}
QUICK = {
    ("rms_norm", "T"): [(32, 256), (64, 256)],
    ("attention", "S"): [(64, 2, 32, "causal"), (128, 2, 32, "causal")],
}


def families(dtype: str, quick: bool) -> dict[tuple[str, str], list[Case]]:
    """The cases of each family; each case is twice as large as the previous one."""
    return {
        (operator, letter): [
            Case(OPERATORS[operator](*numbers), dtype, backward=operator != "adamw") for numbers in sizes
        ]
        for (operator, letter), sizes in (QUICK if quick else FAMILIES).items()
    }


def lines(measured: dict[tuple[str, str], list[tuple[Case, float, float]]]) -> list[str]:
    """The growth of each family from its first to its last size; ``measured``: (case, seconds, floor)."""
    all_lines = []
    for (operator, letter), points in measured.items():
        (first, seconds0, floor0), (last, seconds1, floor1) = points[0], points[-1]
        all_lines.append(
            f"{operator} over {letter}, {first.work.label} to {last.work.label}, {first.way}: "
            f"model x {floor1 / floor0:.2f}, measured x {seconds1 / seconds0:.2f} "
            f"({milliseconds(seconds0)} to {milliseconds(seconds1)} ms)"
        )
    return all_lines


def draw(measured: dict[tuple[str, str], list[tuple[Case, float, float]]], file: str) -> None:
    """A log-log chart of each family's measured times and the model's floor."""
    from matplotlib.figure import Figure  # imported late, because it is slow

    columns = 3
    rows = -(-len(measured) // columns)
    figure = Figure(figsize=(12, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, ((operator, letter), points) in zip(panels.flat, measured.items(), strict=False):
        sizes = [2**position for position in range(len(points))]  # each is twice the previous one
        axes.loglog(sizes, [1e3 * seconds for _, seconds, _ in points], "o-", label="measured")
        axes.loglog(sizes, [1e3 * floor for *_, floor in points], "k--", label="floor of the model")
        numbers = [list(case.work.sizes.values()) for case, *_ in points]
        grows = next(i for i, number in enumerate(numbers[0]) if number != numbers[-1][i])
        axes.set_xticks(sizes, [number[grows] for number in numbers])
        axes.minorticks_off()
        axes.set_title(
            f"{operator}, {points[0][0].way}: {points[0][0].work.label} and larger {letter}", fontsize=8
        )
        axes.set_ylabel("ms")
        axes.legend(fontsize=7)
    for axes in panels.flat[len(measured) :]:
        axes.set_visible(False)
    figure.savefig(file, dpi=120)
