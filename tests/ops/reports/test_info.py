"""The table of operators and backends: nothing empty."""

import pytest

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


def test_the_table_has_a_word_for_each_cell(rows):
    head, _, *lines = info.markdown(rows).splitlines()
    cells = {line.split("|")[1].strip(" `"): line.strip("|").split("|")[1:] for line in lines}
    assert sorted(cells) == sorted(rows) and head.count("|") == 8
    assert all(cell.strip() in ("yes", "some", "no") for row in cells.values() for cell in row)


@pytest.mark.slow
def test_program(run_python):
    result = run_python("-m", "paddle_fused.info")
    assert result.returncode == 0, result.stderr
    assert "not a card" in result.stdout and "rms_norm_npu" in result.stdout
