"""Names that gave way to the field's terms do not come back into code; prose may use the words."""

import ast
import re

import pytest
from places import ROOT
from test_imports import sources_of_the_project

OLD = re.compile(
    r"beats|Hub|Member|TICK|SILENT|SETTLE|LINGER|intents|refuses|(reset_)?what_ran|Why|\w*[sS]tock\w*|Way|Site|NoSite"
    r"|departures|arrivals|Flights?|yardsticks?|born|cure|blind|both_ways|known_names|gathers_again"
    r"|layers_again",
)
PACKAGES = ("paddle_fused", "virtual_npu", "llm_npu", "benchmarks", "scripts")
# Variables, parameters and functions named so say nothing about the value that they hold.
EMPTY = re.compile(r"found|said|told|asked|given|each|one|ours|theirs|came|made")


def names(tree: ast.AST):
    """The names that ``tree`` defines: modules' own, functions', arguments' and variables'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def old_names(modules, pattern=OLD) -> list[str]:
    return [
        f"{module}: {name}"
        for module, tree in modules
        for name in sorted({module.rpartition(".")[2], *names(tree)})
        if pattern.fullmatch(name)
    ]


def other_modules():
    """(name, tree) of the files that are in no package."""
    for folder in ("examples", "building", "docs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield f"{folder}.{path.stem}", ast.parse(path.read_bytes())


def test_the_projects_code_has_no_old_names():
    trees = sources_of_the_project().trees
    assert old_names((m, tree) for m, tree in trees.items() if m.partition(".")[0] in PACKAGES) == []


def test_names_say_what_they_hold():
    """``for layer in layers``, not ``for each in layers``; ``output = run().stdout``, not ``said``."""
    assert old_names([*sources_of_the_project().trees.items(), *other_modules()], EMPTY) == []


@pytest.mark.parametrize(
    "text",
    ["def f(given): ...", "[each for each in x]", "lambda one: 0", "x, found = f()", "def made(): ..."],
)
def test_an_empty_name_is_noticed(text):
    assert old_names([("tests.a", ast.parse(text))], EMPTY)
    text = "from hypothesis import given\nx.found, rows['each'] = f(one=1)"
    assert not old_names([("tests.a", ast.parse(text))], EMPTY)


@pytest.mark.parametrize(
    "text", ["def refuses(x): ...", "for Flight in []: ...", "lambda blind: 0", "class Hub: ..."]
)
def test_an_old_name_is_noticed(text):
    assert old_names([("llm_npu.a", ast.parse(text))])
    assert not old_names([("llm_npu.a", ast.parse('"""refuses"""\ncoordinator = 1'))])


def test_an_old_module_is_noticed():
    assert old_names([("llm_npu.masks.intents", ast.parse(""))])
