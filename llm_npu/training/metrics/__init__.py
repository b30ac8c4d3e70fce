"""The metrics of a run: figures of every step, on the terminal, in ``metrics.jsonl`` and as plots.

recorder    the records, and ``metrics.jsonl``
records     reads ``metrics.jsonl``
record_file a file of lines that outlives a full disk
flops       MFU, the fraction of the device's peak that the model reaches
plots       loss.png and metrics.png
"""

from .flops import Utilization, flops_per_token, measured_flops, utilization
from .plots import Baseline, plot_loss, plot_run
from .recorder import FILE, Recorder, peak_memory
from .records import read

PICTURES = ("loss.png", "metrics.png")
FILES = (FILE, *PICTURES)

__all__ = [
    "FILE",
    "FILES",
    "PICTURES",
    "Recorder",
    "Utilization",
    "flops_per_token",
    "measured_flops",
    "peak_memory",
]
__all__ += ["Baseline", "plot_loss", "plot_run", "read", "utilization"]
