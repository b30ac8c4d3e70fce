"""The pages of the operators: one for each, in one order, with an example that runs."""

import re

import pytest
from places import ROOT

from paddle_fused import registry

pytestmark = pytest.mark.sampled

FOLDER = ROOT / "docs" / "operators"
OPERATORS = sorted(registry.operators())
SECTIONS = ["Formula", "Arguments", "Modes", "Limits", "Errors", "Backends", "Example"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_page_and_its_order(operator):
    text = (FOLDER / f"{operator}.md").read_text()
    assert text.startswith(f"# {operator}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS


def test_no_page_without_an_operator():
    assert sorted(page.stem for page in FOLDER.glob("*.md")) == OPERATORS


@pytest.mark.slow
def test_the_examples_run(run_program):
    """One process runs them all, each in a scope of its own: starting Paddle takes longer."""
    examples = []
    for operator in OPERATORS:
        blocks = re.findall(r"```python\n(.*?)```", (FOLDER / f"{operator}.md").read_text(), re.DOTALL)
        assert blocks, f"docs/operators/{operator}.md has no example"
        examples.append((operator, "\n".join(blocks)))
    result = run_program(
        f"""
        import paddle
        for operator, text in {examples!r}:
            paddle.seed(0)
            try:
                exec(compile(text, operator, "exec"), {{"__name__": operator}})
            except BaseException:
                print("the example of", operator, "failed")
                raise
        """,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
