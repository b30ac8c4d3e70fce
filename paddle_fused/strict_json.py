"""Strict JSON: NaN and infinity, which Python would write as bare words, become null.

Importing this module imports no framework.
"""

from __future__ import annotations

import json
import math


def dumps(value: object, **options) -> str:
    """``json.dumps`` with null in place of NaN and infinity."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        convert = options.pop("default", None)
        plain = json.loads(json.dumps(value, default=convert))
        return json.dumps(_finite(plain), allow_nan=False, **options)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
