"""docs/fusing.md: its examples run, and its table names every kernel."""

import re

import pytest
from places import ROOT

from llm_npu.surgery import scan_all_kernels

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "fusing.md").read_text()


def test_the_examples_run_one_after_the_other(run_program):
    result = run_program("\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rms_norm 5 of 5" in result.stdout


def test_the_table_names_every_kernel():
    rows = re.findall(r"^\| `(\w+)` \| .* \| `(use_\w+)` \| `(npu_\w+)` \|$", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(
        (kernel.name, kernel.switch, kernel.known_as) for kernel in scan_all_kernels().values()
    )
