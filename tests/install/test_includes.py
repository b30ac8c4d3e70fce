"""Which headers the C++ code may include: operators and plugin -> kernels' entry points -> nothing else.

The rule is checked on the source text, and is shown to notice a violation.
"""

import re
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.sampled

# In kernels: <room>/<op>.h, or a header that all rooms share; neither the code of an instruction set nor the
# tables that it hands out.
ENTRY_POINT = re.compile(r"((?!simd/|bfloat16/)\w+/)?\w+(?<!_table)\.h")


# The rooms of virtual_npu/csrc.
PLUGIN = ("bridge", "checks", "collectives", "custom_ops", "dry", "observe", "phi_kernels", "runtime")


def wrong_includes(root: Path) -> list[str]:
    """One line for each #include that breaks a rule.

    Kernels know only themselves; what uses them knows only their entry points. Checks try parts of either.
    """
    lines = []
    for path in sorted(root.glob("*/csrc/**/*")):
        if path.suffix not in (".h", ".cc"):
            continue
        package, _, file = path.relative_to(root).as_posix().partition("/csrc/")
        for included in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            first, _, rest = included.partition("/")
            if file.startswith("kernels/"):
                if first in ("paddle", "ops", *PLUGIN) or included == "Python.h":
                    lines.append(f"{file} includes {included}: kernels know pointers only")
            elif (first == "ops" and not file.startswith("ops/")) or (
                first in PLUGIN and package != "virtual_npu" and not file.startswith("checks/")
            ):
                lines.append(f"{file} includes {included}: operators and plugin know nothing of each other")
            elif first == "kernels" and not ENTRY_POINT.fullmatch(rest):
                lines.append(
                    f"{file} includes {included}: only the entry points kernels/<room>/<op>.h and the shared "
                    "headers kernels/<name>.h are for others"
                )
    return lines


def test_includes_of_the_project():
    assert (ROOT / "paddle_fused/csrc/kernels").is_dir()
    rooms = {path.name for path in (ROOT / "virtual_npu/csrc").iterdir() if path.is_dir()}
    assert rooms - {"__pycache__"} == set(PLUGIN)
    assert wrong_includes(ROOT) == []


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("paddle_fused/csrc/kernels/elementwise/cast.cc", "#include <paddle/phi/api/all.h>", "pointers only"),
        (
            "paddle_fused/csrc/kernels/elementwise/simd/cast.cc",
            '#include "runtime/config.h"',
            "pointers only",
        ),
        ("virtual_npu/csrc/custom_ops/rope.cc", '#include "kernels/simd/load_store.h"', "entry points"),
        (
            "virtual_npu/csrc/custom_ops/rope.cc",
            '#include "kernels/norms/simd/dropout_factors.h"',
            "entry points",
        ),
        ("virtual_npu/csrc/custom_ops/rope.cc", '#include "kernels/bfloat16/tiles.h"', "entry points"),
        ("paddle_fused/csrc/ops/rms_norm.cc", '#include "kernels/norms/rms_norm_table.h"', "entry points"),
        ("paddle_fused/csrc/ops/rms_norm.cc", '#include "observe/record.h"', "nothing of each other"),
        ("paddle_fused/csrc/framework/tensors.cc", '#include "ops/operator.h"', "nothing of each other"),
    ],
)
def test_wrong_includes_are_noticed(tmp_path, file, text, reason):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f'#include "kernels/elementwise/cast.h"\n{text}\n')
    (line,) = wrong_includes(tmp_path)
    assert reason in line
