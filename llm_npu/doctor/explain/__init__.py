"""Explains the log of a failed run: ``llm-npu doctor --explain LOGFILE``.

    explanation = explain(open("run.log", "rb"))
    print(text(explanation))

A log is matched against ``llm_npu/doctor/data``. For each failure, the data contain codes, texts, the
meaning, likely causes in order, commands to run, and a public page or source. The first failure shown is the
root cause. Consequences on other ranks follow, regardless of their position in the log.

This package imports neither paddle nor numpy, and its memory use does not depend on the size of the log.
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
