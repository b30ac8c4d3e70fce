"""Random calls of every operator, in a process of its own: no crash, nothing wrong."""

import pytest

from paddle_fused.cases import all_cases

OPERATORS = sorted({case.operator for case in all_cases()})


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_ten_thousand_random_calls(operator, run_python):
    result = run_python("-m", "paddle_fused.fuzz", operator, "--calls", "10000", timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


@pytest.mark.parametrize("operator", OPERATORS)
def test_two_hundred_random_calls(operator, run_python):
    result = run_python("-m", "paddle_fused.fuzz", operator, "--calls", "200", "--seed", "1")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
