"""JSON that every reader accepts."""

import json
from decimal import Decimal

import numpy as np
import pytest

from paddle_fused import strict_json


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_numbers_that_are_not_finite_are_null(bad):
    value = {"a": [1.5, bad, {"b": (bad, "NaN")}], "c": None}
    text = strict_json.dumps(value, indent=1, sort_keys=True)
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [1.5, None, {"b": [None, "NaN"]}], "c": None}


def test_whatever_becomes_a_number_later():
    text = strict_json.dumps([np.float32("inf"), Decimal("0.5")], default=float)
    assert json.loads(text, parse_constant=pytest.fail) == [None, 0.5]


def test_everything_else_is_as_in_json():
    value = {"é": [0.1, 10**30, True, None, "\\"], "z": {}}
    assert strict_json.dumps(value, ensure_ascii=False) == json.dumps(value, ensure_ascii=False)
