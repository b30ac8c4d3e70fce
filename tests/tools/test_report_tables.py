"""The table that tools, benchmarks and layers print."""

import pytest

from llm_npu.report.table import Table, aligned, markdown


def test_columns_of_words_and_of_numbers():
    rows = [["layer", "ms"], ["a", "10.5"]]
    assert aligned(rows) == ["layer  ms", "a      10.5"]
    assert aligned(rows, words=1) == ["layer    ms", "a      10.5"]
    table = Table("Times", rows[0], rows[1:], remark="Of one step.")
    assert table.text().splitlines() == ["Times", "layer    ms", "-----  ----", "a      10.5", "Of one step."]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError):
        aligned([["layer", "ms"], ["a"]])


def test_markdown():
    assert markdown(("layer", "ms"), [("a", 10.5)]) == "| layer | ms |\n| --- | --- |\n| a | 10.5 |"
