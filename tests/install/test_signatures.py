"""No function takes more positional arguments than a reader keeps apart; what has more takes them by name."""

import ast

from places import ROOT
from test_imports import Sources, below

MOST = 7
# Not paddle_fused: its functions have the signatures of the operators that they stand for.
CHECKED = ("llm_npu", "scripts", "benchmarks")


def too_long(sources: Sources) -> list[str]:
    """One line for each function with more than ``MOST`` positional parameters."""
    return [
        f"{module}, line {node.lineno}: {node.name} has {count} positional parameters"
        for module, tree in sources.trees.items()
        if below(module, *CHECKED)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (count := len(node.args.posonlyargs) + len(node.args.args)) > MOST
    ]


def test_signatures_of_the_project():
    assert too_long(Sources(ROOT)) == []


def test_long_signatures_are_noticed(tmp_path):
    (tmp_path / "scripts").mkdir()
    parameters = "a, b, c, d, e, f, g"
    (tmp_path / "scripts/a.py").write_text(f"def at_most({parameters}, *, h): pass\n")
    (tmp_path / "scripts/b.py").write_text(f"class A:\n    def more({parameters}, h): pass\n")
    assert too_long(Sources(tmp_path)) == ["scripts.b, line 2: more has 8 positional parameters"]
