"""Parts of the tables on the page of published runs."""

from __future__ import annotations

from .programs.layout import PublishedLayout
from .published import data

LARGE = 0.08  # a larger error needs a reason


def percent(share: float) -> str:
    """A relative error in per cent, with its sign."""
    return f"{100 * share:+.1f} %"


def degrees(layout: PublishedLayout) -> str:
    """The degrees of a layout, and other settings that affect time and memory."""
    chunks = f" x {layout.virtual_pp_degree}" if layout.virtual_pp_degree > 1 else ""
    parts = [
        f"TP {layout.tensor_parallel_degree}",
        f"PP {layout.pipeline_parallel_degree}{chunks}",
        f"CP {layout.context_parallel_degree}" * (layout.context_parallel_degree > 1),
        f"DP {layout.data_parallel_degree}",
        "MC2" * (layout.overlap == "mc2"),
        "recompute" * layout.recompute,
    ]
    return ", ".join(filter(None, parts))


def reason(name: str, error: float) -> str:
    """The reason for the error of run ``name`` from the data file; "" for a small error without a reason."""
    published_run = next(run for run in data()["points"] if run["name"] == name)
    return published_run.get("why") or ("unexplained" if abs(error) > LARGE else "")
