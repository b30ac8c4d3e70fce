"""What a run measures: figures of every step, on the terminal, in ``metrics.jsonl`` and as pictures.

recorder.py        the records, and ``metrics.jsonl``
utilization.py     the share of the device's peak that the model's operations reach
plots.py           loss.png and metrics.png
"""

from .flops import Utilization, flops_per_token, measured_flops, utilization
from .plots import plot_loss, plot_run
from .recorder import FILE, Recorder, peak_memory, read

__all__ = ["FILE", "Recorder", "Utilization", "flops_per_token", "measured_flops", "peak_memory"]
__all__ += ["plot_loss", "plot_run", "read", "utilization"]
