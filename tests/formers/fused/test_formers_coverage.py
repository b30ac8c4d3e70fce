"""docs/coverage.md has what the records of trainings of PaddleFormers' models have."""

from fused_models import coverage, table


def test_the_page_has_what_the_trainings_record(on_npu):
    rows = coverage.rows()
    assert {row.backend for row in rows} == {"ascend"}
    page = coverage.written(f"models of {table.title()}")
    assert page == coverage.markdown(rows), f"run: {coverage.COMMAND}"
