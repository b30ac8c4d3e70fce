"""Decodes the log of a failed run: ``python -m llm_npu.doctor --explain LOGFILE``.

    found = explain(open("run.log", "rb"))
    print(text(found))

A log is compared with ``llm_npu/doctor/data``: for each failure the codes and texts by which it shows, what
it means, its likely causes in order, what to run, and the public page or source that says so. What is named
first is the first cause; what other ranks say because of it comes behind, wherever it stands in the log.

Nothing here imports paddle or numpy, and a log is read with little memory, whatever its size.
"""

from .naming import Explanation, Named, explain, explain_text
from .shown import LABELS, after_tracebacks, as_json, brief, exit_code, of_error, of_rank, text

__all__ = [
    "LABELS",
    "Explanation",
    "Named",
    "after_tracebacks",
    "as_json",
    "brief",
    "exit_code",
    "explain",
    "explain_text",
    "of_error",
    "of_rank",
    "text",
]
