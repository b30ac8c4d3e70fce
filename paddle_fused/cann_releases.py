"""The releases of CANN in the contracts and the virtual NPU, and the one whose limits apply.

Sources: release notes at https://www.hiascend.com/document (8.2.RC1 to 9.2.0-beta.1) and the tags of
https://github.com/hicann; llm_npu/cann/data/releases.json has one URL for each release.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .cann_installation import find_cann
from .libraries import virtual_npu_is_active

VARIABLE = "VIRTUAL_NPU_CANN"
RELEASES = (
    "8.0.RC2",
    "8.0.0",
    "8.1.RC1",
    "8.2.RC1",
    "8.3.RC1",
    "8.5.0",
    "9.0.0",
    "9.1.0",
    "9.2.0-beta.1",
)
# The release of Paddle's newest image for the 910B, cann800-ubuntu20-npu-910b-base, in which
# paddle_custom_device.npu.version() prints "cann: 8.0.0". Source:
# https://github.com/PaddlePaddle/docs/blob/develop/docs/hardware_support/npu/install_cn.md (2026-11).
DEFAULT = "8.0.0"
# Paddle has no image for these cards. These are the first release with fused matmul-collective operators for
# the 910C (document of aclnnAllGatherMatmul) and the first for the 950 (release notes of 9.0.0).
DEFAULTS_BY_CARD = {"910c": "8.2.RC1", "950": "9.0.0"}
# 8.1 is short for 8.1.RC1; 8.0 is short for 8.0.0, not its release candidate.
SHORT_NAMES = {".".join(release.split(".")[:2]): release for release in RELEASES}
ACCEPTED = f"{', '.join(RELEASES[:-1])} or {RELEASES[-1]}, also in the short form {', '.join(SHORT_NAMES)}"


def release_of(text: str) -> str:
    """The release that ``text`` names, in full or by its first two numbers. Raises ValueError."""
    release = SHORT_NAMES.get(text, text)
    if release not in RELEASES:
        raise ValueError(
            f"{VARIABLE} is {text!r}, which is not an emulated release of CANN (nearest: {nearest(text)}); "
            f"accepted: {ACCEPTED}."
        )
    return release


@functools.cache
def index_of(text: str) -> int:
    """The index of a release in ``RELEASES``. Raises ValueError if ``text`` is not a release."""
    return RELEASES.index(release_of(text))


def nearest(text: str) -> str:
    """The newest release up to version ``text``, or the oldest. Without a version: the closest spelling."""
    version = re.match(r"(\d+)\.(\d+)", text)
    if version is None:
        return difflib.get_close_matches(text, RELEASES, n=1, cutoff=0)[0]
    wanted = tuple(map(int, version.groups()))
    return next((r for r in reversed(RELEASES) if _two_numbers(r) <= wanted), RELEASES[0])


def _two_numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


def in_effect() -> str:
    """The release whose limits apply.

    In this order: VIRTUAL_NPU_CANN; on a machine with CANN, unless the virtual NPU is active, the release in
    ``RELEASES`` nearest to the installed one; the default of the virtual NPU.
    """
    if INSTALLED is None or os.environ.get(VARIABLE) or virtual_npu_is_active():
        return emulated()
    return INSTALLED


def _installed() -> str | None:
    cann = find_cann(os.environ, Path("/"))
    return nearest(cann.version) if cann is not None and cann.version is not None else None


def emulated(environ: Mapping[str, str] = os.environ) -> str:
    """The release that the virtual NPU emulates: VIRTUAL_NPU_CANN, or the default of VIRTUAL_NPU_CARD.

    Raises ValueError for a value that is not a release.
    """
    card = environ.get("VIRTUAL_NPU_CARD", "")
    return release_of(environ.get(VARIABLE) or DEFAULTS_BY_CARD.get(card, DEFAULT))


# Read once, on import: a call may be captured by Paddle's SOT, which cannot translate pathlib.
INSTALLED = _installed()
