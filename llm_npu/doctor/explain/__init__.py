"""Decodes the log of a failed run: ``llm-npu doctor --explain LOGFILE``.

    explanation = explain(open("run.log", "rb"))
    print(text(explanation))

A log is matched against ``llm_npu/doctor/data``, which has the codes and texts of each failure, its meaning,
its likely causes in order, commands to run, and a public page or source. The first failure shown is the root
cause; consequences on other ranks follow, wherever they are in the log.

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
