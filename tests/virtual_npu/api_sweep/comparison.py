"""Compares the run of a case on npu with its run on the CPU place, and describes the first difference."""

from __future__ import annotations

import numpy

from api_sweep.case import Case
from api_sweep.run import Result, run

DEVICE = "npu"


def disagreement(case: Case) -> str:
    """Empty if npu equals the CPU place, otherwise a sentence. An error on the CPU place is raised."""
    expected = run(case, "cpu")
    try:
        result = run(case, DEVICE)
    except Exception as error:  # whatever the device raises is the finding
        return f"raises {type(error).__name__}: {' '.join(str(error).split())}"
    return _values(case, expected, result) or _places(case, result)


def _values(case: Case, expected: Result, result: Result) -> str:
    missing = [number for number, gradient in enumerate(expected.gradients) if gradient is None]
    if missing:
        raise AssertionError(f"{case.id}: input {missing} has no gradient: declare it constant")
    for kind in ("outputs", "gradients"):
        wanted, got = getattr(expected, kind), getattr(result, kind)
        if len(wanted) != len(got):
            return f"{len(got)} {kind} instead of {len(wanted)}"
        for number, (left, right) in enumerate(zip(wanted, got, strict=True)):
            words = _difference(left, right, case.ulps)
            if words:
                return f"{kind}[{number}]: {words}"
    return ""


def _difference(expected: numpy.ndarray, actual: numpy.ndarray | None, ulps: int) -> str:
    if actual is None:
        return "is None"
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return f"{actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
    if numpy.array_equal(expected, actual, equal_nan=expected.dtype.kind in "fc"):
        return ""
    allowed = ulps * numpy.finfo("float32").eps * numpy.abs(expected).max(initial=0)
    if ulps and numpy.allclose(actual, expected, rtol=0, atol=allowed, equal_nan=True):
        return ""
    unequal = ~((expected == actual) | ((expected != expected) & (actual != actual)))
    return (
        f"{int(unequal.sum())} of {expected.size} elements differ, "
        f"first {actual[unequal].ravel()[0]} instead of {expected[unequal].ravel()[0]}"
    )


def _places(case: Case, result: Result) -> str:
    elsewhere = sorted({place for place in result.places if DEVICE not in place})
    if case.host_outputs and not elsewhere:
        return f"nothing is on the host, against what is declared: {case.host_outputs}"
    if elsewhere and not case.host_outputs:
        return f"outputs or gradients are on {', '.join(elsewhere)}"
    return ""
