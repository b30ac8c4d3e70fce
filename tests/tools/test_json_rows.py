"""Recorded data is written a record a line, by the writer that the file goes through."""

import json

import pytest
from places import ROOT

from llm_npu.core import json_rows

RECORDED = [ROOT / "llm_npu/acceptance/data/virtual_npu.json", *ROOT.glob("scripts/versions/results/*.json")]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.name)
def test_recorded_data_is_as_its_writer_writes_it(file):
    text = file.read_text(encoding="utf-8")
    assert json_rows.dumps(json.loads(text)) == text


def test_what_fits_is_one_line():
    value = {"run": {"losses": [0.5] * 9, "words": ["a", "b"]}, "empty": {}}
    assert json_rows.dumps(value, 20).splitlines() == [
        "{",
        ' "run": {',
        f'  "losses": {[0.5] * 9},',
        '  "words": ["a", "b"]',
        " },",
        ' "empty": {}',
        "}",
    ]
