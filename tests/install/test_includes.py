"""Which headers the C++ code may include: operators and plugin -> kernels' entry points -> nothing else.

The rule is checked on the source text, and is shown to notice a violation.
"""

import re
from pathlib import Path

import pytest
from places import ROOT

# In kernels: <room>/<op>.h, or a header that all rooms share; neither the code of an instruction set nor the
# tables that it hands out.
ENTRY_POINT = re.compile(r"((?!simd/|bfloat16/)\w+/)?\w+(?<!_table)\.h")


def wrong_includes(csrc: Path) -> list[str]:
    """One line for each #include that breaks a rule.

    Kernels know only themselves; what uses them knows only their entry points. Checks try parts of either.
    """
    lines = []
    for path in sorted(csrc.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        file = path.relative_to(csrc).as_posix()
        for included in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            first, _, rest = included.partition("/")
            if file.startswith("kernels/"):
                if first in ("paddle", "ops", "virtual_npu") or included == "Python.h":
                    lines.append(f"{file} includes {included}: kernels know pointers only")
            elif first in ("ops", "virtual_npu") and not file.startswith((f"{first}/", "checks/")):
                lines.append(f"{file} includes {included}: operators and plugin know nothing of each other")
            elif first == "kernels" and not ENTRY_POINT.fullmatch(rest):
                lines.append(
                    f"{file} includes {included}: only the entry points kernels/<room>/<op>.h and the shared "
                    "headers kernels/<name>.h are for others"
                )
    return lines


def test_includes_of_the_project():
    assert (ROOT / "paddle_fused" / "csrc" / "kernels").is_dir()
    assert wrong_includes(ROOT / "paddle_fused" / "csrc") == []


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("kernels/elementwise/cast.cc", "#include <paddle/phi/api/all.h>", "pointers only"),
        ("kernels/elementwise/simd/cast.cc", '#include "virtual_npu/runtime/config.h"', "pointers only"),
        ("virtual_npu/custom_ops/rope.cc", '#include "kernels/simd/load_store.h"', "entry points"),
        ("virtual_npu/custom_ops/rope.cc", '#include "kernels/norms/simd/dropout_factors.h"', "entry points"),
        ("virtual_npu/custom_ops/rope.cc", '#include "kernels/bfloat16/tiles.h"', "entry points"),
        ("ops/rms_norm.cc", '#include "kernels/norms/rms_norm_table.h"', "entry points"),
        ("ops/rms_norm.cc", '#include "virtual_npu/observe/record.h"', "nothing of each other"),
        ("framework/tensors.cc", '#include "ops/operator.h"', "nothing of each other"),
    ],
)
def test_wrong_includes_are_noticed(tmp_path, file, text, reason):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f'#include "kernels/elementwise/cast.h"\n{text}\n')
    (line,) = wrong_includes(tmp_path)
    assert reason in line
