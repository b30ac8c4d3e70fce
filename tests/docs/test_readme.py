"""The README's table of environment variables is the one the code checks against; its example runs."""

import re

from places import ROOT

from paddle_fused.virtual_npu.settings import SETTINGS

README = ROOT / "README.md"


def test_readme_lists_every_setting():
    table = re.findall(r"^\| `([A-Z_]+)` \| (.*) \| (.*) \|$", README.read_text(), re.MULTILINE)
    rows = [(name, meaning.replace("`", ""), default) for name, meaning, default in table]
    assert rows == [(name, setting.meaning, setting.default) for name, setting in SETTINGS.items()]


def test_the_example_of_the_fused_operators_runs(run_program):
    section = README.read_text().partition("## Fused operators\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    result = run_program(example)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "flash_attention" in result.stdout and "add_rms_norm" in result.stdout
