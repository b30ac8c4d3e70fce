"""The README's table of environment variables is the one the code checks against."""

import re
from pathlib import Path

from paddle_fused.virtual_npu.settings import SETTINGS

README = Path(__file__).resolve().parents[1] / "README.md"


def test_readme_lists_every_setting():
    table = re.findall(r"^\| `([A-Z_]+)` \| (.*) \| (.*) \|$", README.read_text(), re.MULTILINE)
    rows = [(name, meaning.replace("`", ""), default) for name, meaning, default in table]
    assert rows == [(name, setting.meaning, setting.default) for name, setting in SETTINGS.items()]
