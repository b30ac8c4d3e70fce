"""The reports point at lines and workarounds that exist, and every workaround has a report."""

import ast
import re

import pytest
from defects.fixed import FIXED
from defects.page import page
from defects.report import ROOT, read, reports

PATCHES = sorted((ROOT / "llm_npu/patches").rglob("*.py"))
PAGE = ROOT / "docs/upstream_defects.md"
CAPTURED = ROOT / "paddle_fused/captured.py"
VIRTUAL_NPU = ROOT / "virtual_npu/patches.py"
# Comments that name a release tell of a defect, or of a difference between releases.
RELEASE = re.compile(r"\bPaddle(?:NLP|Formers)?(?:'s)? 3\.[\d.b]+|\bPaddleFormers 1\.[\d.]+")
NO_DEFECTS = {  # files that name a release for another reason
    "paddle_fused/paddle_release.py": "differences between releases",
    "paddle_fused/csrc/framework/paddle_release.h": "differences between releases",
    "virtual_npu/activation.py": "sets what 3.0 reads",
    "virtual_npu/csrc/phi_kernels/math/fused_linear_param_grad_add.cc": "follows 3.0",
    "llm_npu/config/conflicts.py": "refuses what 3.0 cannot",
    "llm_npu/config/no_effect.py": "who reads a variable",
    "llm_npu/config/schedules.py": "refuses what 3.1 cannot",
    "llm_npu/doctor/checks/ascend.py": "who reads a variable",
    "llm_npu/inference/options.py": "refuses what PaddleFormers 1.2 cannot",
    "llm_npu/launch/processes.py": "sets what 3.0 reads",
    "llm_npu/parallel/session.py": "imports what 3.0 lacks",
    "llm_npu/patches/gradients.py": "a wish",
}


def functions(file) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def dotted(file) -> str:
    path = file.relative_to(ROOT).with_suffix("")
    return ".".join(path.parts[:-1] if path.name == "__init__" else path.parts)


def module_of(function: str):
    """The file of a function's module."""
    path = ROOT / function.rpartition(".")[0].replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def patches() -> list[str]:
    """The functions that fix something, in the modules of patches."""
    names_of_patches = []
    for file in PATCHES:
        named = functions(file)
        names_of_patches += [
            f"{dotted(file)}.{name}" for name, node in named.items() if node.decorator_list and name[0] != "_"
        ]
    applied = ast.walk(functions(CAPTURED)["apply_patches"])
    names_of_patches += [
        f"{dotted(CAPTURED)}.{node.func.id}" for node in applied if isinstance(node, ast.Call)
    ]
    chosen = ast.walk(functions(VIRTUAL_NPU)["patch_variables"])
    names = {
        node.func.id for node in chosen if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return names_of_patches + [f"{dotted(VIRTUAL_NPU)}.{name}" for name in names]


def reported() -> set[str]:
    names = {name for report in reports() for name in report.workarounds}
    return names | {patch.workaround for patch in FIXED} | set(on_the_page())


def on_the_page() -> list[str]:
    """The patches that the page names itself, for defects that only a card would show."""
    return re.findall(r"`(llm_npu\.patches\.[\w.]+)`", PAGE.read_text(encoding="utf-8"))


def test_every_patch_has_a_report():
    assert len(patches()) > 20
    assert [name for name in patches() if name not in reported()] == []


def test_every_defect_that_a_comment_names_has_a_report():
    files = {part.partition(":")[0] for part in reported() if "/" in part}
    files |= {str(module_of(name).relative_to(ROOT)) for name in reported() if "/" not in name}
    mentioned = {
        str(file.relative_to(ROOT))
        for folder in ("paddle_fused", "llm_npu")
        for suffix in ("*.py", "*.cc", "*.h")
        for file in (ROOT / folder).rglob(suffix)
        if RELEASE.search(file.read_text(encoding="utf-8"))
    }
    assert mentioned - files - set(NO_DEFECTS) == set()


@pytest.mark.parametrize("name", sorted(reported()))
def test_a_workaround_is_where_the_report_says(name):
    if "/" in name:
        assert (ROOT / name).is_file()
        return
    assert name.rpartition(".")[2] in functions(module_of(name))


@pytest.mark.parametrize("report", [pytest.param(report, id=report.name) for report in reports()])
def test_the_lines_are_those_of_the_installed_release(report):
    assert report.locations
    for location in report.locations:
        file = location.installed()
        if file is None:
            continue
        line = file.read_text(encoding="utf-8").splitlines()[location.line - 1]
        assert location.quote in line, f"{location.path}:{location.line} is {line.strip()!r}"


def test_workarounds_on_the_page_itself_are_there():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:llm_npu|paddle_fused|scripts)/[\w/.]+)`", text)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert all(name in patches() for name in on_the_page())


def test_the_page_has_every_report():
    text = page()
    for report in reports():
        assert f"### {report.title}" in text and report.program in text
    assert all(patch.defect in text for patch in FIXED)


def test_a_report_that_lacks_a_field_is_refused(tmp_path):
    file = tmp_path / "program.py"
    file.write_text('"""A title.\n\n:versions: paddlepaddle 3.3.1\n:colour: red\n"""\n')
    with pytest.raises(ValueError, match=r"lacks \['at', .* has \['colour'\]"):
        read(file)
