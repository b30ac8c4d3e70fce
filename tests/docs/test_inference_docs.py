"""The examples of docs/inference.md run, one after the other."""

import re

import pytest
from places import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/inference.md"


def test_the_examples_run(run_program):
    result = run_program("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    assert result.returncode == 0, result.stdout + result.stderr
