"""Charts of the results."""

from __future__ import annotations

from argparse import Namespace

from .report import by_case, title


def share_of_limit(arguments: Namespace, records: list[dict]) -> None:
    """Bars: for each case, every contender's share of the machine's limit."""
    from matplotlib.figure import Figure  # slow to import

    cases, contenders = by_case(records), arguments.contenders
    figure = Figure(figsize=(10, 1.5 + 0.16 * len(cases) * len(contenders)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(contenders)
    for position, name in enumerate(contenders):
        shares = [
            (row, of[name]["share"]) for row, of in enumerate(cases.values()) if "share" in of.get(name, {})
        ]
        if not shares:
            continue
        rows = [row + (position - (len(contenders) - 1) / 2) * height for row, _ in shares]
        axes.barh(rows, [100 * share for _, share in shares], height, color=f"C{position}", label=name)
    settings = {malloc for *_, malloc in cases}
    names = [" ".join(case) + (f", malloc {malloc}" if len(settings) > 1 else "") for *case, malloc in cases]
    axes.set_yticks(range(len(cases)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlabel("share of the limit measured in the same run (%)")
    malloc = " and ".join(sorted(settings))
    axes.set_title(f"Share of the machine's limit: {title(records)}, malloc {malloc}")
    figure.legend(loc="outside lower center", ncols=len(contenders))
    figure.savefig(arguments.chart, dpi=120)
