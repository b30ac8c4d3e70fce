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
        if not found:
            continue
        rows = [row + (position - (len(contenders) - 1) / 2) * height for row, _ in found]
        axes.barh(rows, [100 * share for _, share in found], height, color=f"C{position}", label=name)
    settings = {malloc for *_, malloc in cases}
    names = [" ".join(case) + (f", malloc {malloc}" if len(settings) > 1 else "") for *case, malloc in cases]
    axes.set_yticks(range(len(cases)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlabel("share of the limit measured in the same run (%)")
    facts = next(record for record in records if record["kind"] == "machine")
    machine = f"{facts['processor']}, {facts['threads']} threads, commit {facts['commit']}"
    axes.set_title(f"Share of the machine's limit: {machine}, malloc {' and '.join(sorted(settings))}")
    figure.legend(loc="outside lower center", ncols=len(contenders))
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
