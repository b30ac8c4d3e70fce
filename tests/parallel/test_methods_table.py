"""docs/distributed.md has a row for each parallel method that is compared with one process, and no other."""

import methods_table
import pytest

pytestmark = pytest.mark.slow


def test_the_table_is_of_the_cases_that_are_tested():
    """Each of them is a test, which fails where the table would be wrong."""
    assert methods_table.written() == methods_table.markdown(dict.fromkeys(methods_table.listed(), True))


RESULTS = """
import pytest
from methods_table import Case

@pytest.mark.parametrize("mode", ["dygraph", "static"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_all(mode, precision, record_property):
    on_a_card = precision == "bfloat16"
    record_property(*Case("tensor parallel", 2, "--nproc 2", mode, precision, on_a_card).recorded)
    assert (mode, precision) != ("static", "bfloat16")

def test_one(record_property):
    record_property(*Case("data parallel", 2, "dp=2", "dygraph").recorded)

def test_none():
    pass
"""
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import methods_table, pytest
results = methods_table.Results()
pytest.main([sys.argv[2], "-q"], plugins=[results])
print(methods_table.markdown(results.passed))
"""
TABLE = """
| method | processes | given | dygraph | static | fused on a card |
|---|---|---|---|---|---|
| tensor parallel | 2 | `--nproc 2` | float32, bfloat16 | float32, not in bfloat16 | dygraph |
| data parallel | 2 | `dp=2` | float32 | - | - |
"""


def test_the_table_says_what_the_tests_have_found(run_python, tmp_path):
    (tmp_path / "test_results.py").write_text(RESULTS)
    done = run_python("-c", PROGRAM, methods_table.HERE, tmp_path / "test_results.py")
    assert TABLE in done.stdout, done.stdout + done.stderr
