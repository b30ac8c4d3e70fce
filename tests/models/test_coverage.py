"""docs/coverage.md has what sources and records of trainings have; every operator has a caller."""

import pytest
from fused_models import coverage, table

from paddle_fused import registry


@pytest.fixture(scope="module")
def rows():
    """Of the trainings of this library's models."""
    import paddle

    paddle.set_device("npu")
    return coverage.rows()


def test_every_operator_has_a_caller():
    assert set(registry.operators()) == set(coverage.callers())


@pytest.mark.slow
def test_every_operator_is_on_the_record_of_a_training(rows):
    """On the plugin's operators or compositions of them, which is what runs on a card.

    The page has those of the other library's models, whose environment tests them.
    """
    expected = {coverage.RECORDED_AS.get(name, name) for name in registry.operators()}
    (other,) = {"PaddleNLP", "PaddleFormers"} - {table.title()}
    assert {row.operator for row in rows} | coverage.operators_written(other) >= expected
    assert {row.backend for row in rows} == {"ascend"}


def test_the_page_has_what_the_code_has(rows):
    assert coverage.written("callers") == coverage.markdown_of_callers(), f"run: {coverage.COMMAND}"
    page = coverage.written(f"models of {table.title()}")
    assert page == coverage.markdown(rows), f"run: {coverage.COMMAND}"


def test_only_uses_count_as_calls(tmp_path):
    """Not those in a docstring, in an example of the backend report, or in a tool."""
    for folder in ("surgery", "plan"):
        (tmp_path / "llm_npu" / folder).mkdir(parents=True)
    text = '"""paddle_fused.geglu"""\nimport paddle_fused\ndef example():\n    return paddle_fused.swiglu\n'
    (tmp_path / "llm_npu/surgery/a.py").write_text(text)
    (tmp_path / "llm_npu/plan/b.py").write_text("import paddle_fused\npaddle_fused.rms_norm(1)\n")
    assert coverage.callers(tmp_path) == {}
    (tmp_path / "llm_npu/surgery/a.py").write_text("from paddle_fused import FusedAdamW\nx = FusedAdamW()\n")
    (tmp_path / "llm_npu/plan.py").write_text("import paddle_fused\nx = map(paddle_fused.geglu, [])\n")
    assert coverage.callers(tmp_path) == {
        "fused_adamw": ["llm_npu/surgery/a.py"],
        "geglu": ["llm_npu/plan.py"],
    }
