"""Decodes the log of a failed run: ``llm-npu doctor --explain LOGFILE``.

    found = explain(open("run.log", "rb"))
    print(text(found))

A log is matched against ``llm_npu/doctor/data``: for each failure, its codes and texts, its meaning, its
likely causes in order, commands to run, and the public page or source behind it. The first failure shown is
the root cause; consequences on other ranks come later, wherever they are in the log.

Nothing here imports paddle or numpy, and memory use does not depend on the size of the log.
"""

from .naming import Explanation, Named, explain, explain_text
from .reading import as_utf8
from .shown import LABELS, after_tracebacks, as_json, brief, exit_code, of_error, of_rank, text

__all__ = [
    "LABELS",
    "Explanation",
    "Named",
    "after_tracebacks",
    "as_json",
    "as_utf8",
    "brief",
    "exit_code",
    "explain",
    "explain_text",
    "of_error",
    "of_rank",
    "text",
]
