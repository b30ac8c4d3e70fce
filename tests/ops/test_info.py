"""The table of operators and backends: nothing empty."""

import pytest
from places import ROOT

from paddle_fused import info


@pytest.fixture(scope="module")
def rows():
    return info.table()


def test_no_cell_without_an_answer_or_a_reason(rows):
    for operator, row in rows.items():
        assert len(row) == 6, operator
        for (backend, place), cell in row.items():
            assert cell.word() in ("yes", "some", "no")
            assert all(mode.strip() for mode in cell.modes), (operator, backend, place)
            assert all(reason.strip() for reason in cell.reasons), (operator, backend, place)
        assert row["composed", "npu"].word() == "yes", f"{operator} has no definition on the npu"


def test_every_reason_is_in_the_explanation(rows):
    text = info.explanation(rows)
    for row in rows.values():
        for cell in row.values():
            assert all(f"refused: {reason}" in text for reason in cell.reasons)


def test_readme_has_the_table(rows):
    readme = ROOT / "README.md"
    assert info.markdown(rows) in readme.read_text(), "run python -m paddle_fused.info --markdown"


def test_program(run_python):
    result = run_python("-m", "paddle_fused.info")
    assert result.returncode == 0, result.stderr
    assert "not a card" in result.stdout and "rms_norm_npu" in result.stdout
