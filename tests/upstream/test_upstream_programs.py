"""Every report's program shows its defect with the installed release; one that is fixed fails the test."""

import importlib.metadata

import pytest
from defects import outcome
from defects.report import numbers, reports


def applies(report) -> bool:
    """Whether its libraries are installed, in releases that may have the defect."""
    try:
        return all(
            numbers(importlib.metadata.version(name)) >= oldest for name, oldest in report.oldest.items()
        )
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "report", [pytest.param(report, id=report.name) for report in reports() if applies(report)]
)
def test_the_defect_is_there(report, start_python, tmp_path):
    result = outcome.run(report, tmp_path, start_python)
    problem = outcome.problem(report, result)
    assert problem is None, f"{problem}\n{result.text}\n{result.errors}"
