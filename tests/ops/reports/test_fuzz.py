"""Random calls of every operator, in separate processes: no crash, no wrong result."""

import pytest

from paddle_fused import registry

pytestmark = pytest.mark.slow

OPERATORS = sorted(registry.operators())


@pytest.mark.parametrize("operator", OPERATORS)
def test_ten_thousand_random_calls(operator, run_python):
    result = run_python("-m", "paddle_fused.fuzz", operator, "--calls", "10000", timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


EVERY = """
import sys
from paddle_fused import fuzz
sys.exit(max([fuzz.main([operator, "--calls", "200", "--seed", "1"]) for operator in sys.argv[1:]]))
"""


def test_two_hundred_random_calls_of_each(run_python):
    result = run_python("-X", "faulthandler", "-c", EVERY, *OPERATORS)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == OPERATORS
