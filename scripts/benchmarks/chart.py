"""Pictures of the results."""

from __future__ import annotations

from .report import by_case


def share_of_limit(records: list[dict], contenders: list[str], file: str) -> None:
    """Bars: for each case the share of the machine's limit that every contender reaches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = by_case(records)
    figure, axes = pyplot.subplots(
        figsize=(10, 1.5 + 0.16 * len(cases) * len(contenders)), layout="constrained"
    )
    height = 0.8 / len(contenders)
    for position, name in enumerate(contenders):
        found = [
            (row, of[name]["share"]) for row, of in enumerate(cases.values()) if "share" in of.get(name, {})
        ]
        rows = [row + (position - (len(contenders) - 1) / 2) * height for row, _ in found]
        axes.barh(rows, [100 * share for _, share in found], height, label=name)
    axes.set_yticks(range(len(cases)), [" ".join(case) for case in cases], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlabel("share of the limit measured in the same run (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.04), ncols=3)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
