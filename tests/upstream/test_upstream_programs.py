"""Every report's program shows its defect with the installed release; one that is fixed fails the test."""

import importlib.metadata

import pytest
from defects import outcome
from defects.report import numbers, reports

# One of each kind: without a device, on ranks, and one that ends with a signal.
QUICK = (
    "auto_parallel/accumulated_gradients",
    "auto_parallel/values_of_dist_tensors",
    "cpu_kernels/square_root_of_infinity",
)


def applies(report) -> bool:
    """Whether its libraries are installed, in releases that may have the defect."""
    try:
        return all(
            numbers(importlib.metadata.version(name)) >= oldest for name, oldest in report.oldest.items()
        )
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.default_run(every=True)
@pytest.mark.parametrize(
    "report",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in QUICK else pytest.mark.slow)
        for each in reports()
        if applies(each)
    ],
)
def test_the_defect_is_there(report, start_python, tmp_path):
    found = outcome.run(report, tmp_path, start_python)
    problem = outcome.problem(report, found)
    assert problem is None, f"{problem}\n{found.text}\n{found.errors}"


def test_the_quick_ones_are_there():
    assert set(QUICK) <= {each.name for each in reports()}
