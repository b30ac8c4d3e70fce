"""Versions of CANN and of its driver, and their order.

8.0.RC1 < 8.0.RC2.alpha001 < 8.0.RC2 < 8.0.0 < 8.1.RC1
"""

from __future__ import annotations

import re

PATTERN = re.compile(r"(\d+)\.(\d+)(?:\.(RC|T)?(\d+))?(?:\.(alpha|beta)?(\d+))?", re.IGNORECASE)
STAGES = {"T": 0, "RC": 1, "": 2}  # trials and release candidates come before the release
# the first versions that document products fused with collectives
MC2_CANN, MC2_DRIVER = "8.0.RC2", "24.1.RC2"


def is_before(version: str, other: str) -> bool:
    """Whether ``version`` is older; False if one of them is not a version, such as ``???``."""
    keys = _order(version), _order(other)
    return None not in keys and keys[0] < keys[1]


def _order(version: str) -> tuple[int, ...] | None:
    found = PATTERN.match(version)
    if found is None:
        return None
    major, minor, stage, number, preview, last = found.groups()
    return (
        int(major),
        int(minor),
        STAGES[(stage or "").upper()],
        int(number or 0),
        not preview,
        int(last or 0),
    )
