"""Versions that work separately but not together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from llm_npu.models.library import names

from ..ascend_version import MC2_CANN, MC2_DRIVER, is_before
from ..cann import content
from ..finding import Finding, error, ok, warning
from ..setup import Setup
from .ascend import driver_version

PLUGIN = "paddle-custom-npu"
MC2_VARIABLE = "FLAGS_NPU_MC2"  # PaddleNLP 3.0.0b4 and PaddleFormers 1.2.0 parse it as an integer


def versions(setup: Setup) -> Iterator[Finding]:
    """What paddle-custom-npu was built with.

    A problem: another paddlepaddle; another CANN.
    """
    if setup.card.plugin is None:
        return
    built = _built_with(setup.card.plugin)
    judge = error if setup.kind == "card" else warning
    findings = list(_pair_with_paddle(built.get("full_version") or installed(PLUGIN), judge))
    if setup.cann and setup.cann.version and built.get("cann_version"):
        findings += _pair_with_cann(built["cann_version"], setup.cann.version)
    yield from findings or [ok("pairs", f"{PLUGIN} in {setup.card.plugin} matches Paddle and CANN")]


def _pair_with_paddle(plugin: str | None, judge) -> Iterator[Finding]:
    paddle = installed("paddlepaddle")
    if plugin is None or paddle is None or _release(plugin) == _release(paddle):
        return
    what = f"{PLUGIN} {plugin} was built for paddlepaddle {plugin}, but {paddle} is installed"
    yield judge(
        "pairs", what, f"Install {PLUGIN} {paddle}, or paddlepaddle {plugin}: the same version of both."
    )


def _pair_with_cann(built: str, installed: str) -> Iterator[Finding]:
    if is_before(built, installed) or is_before(installed, built):
        what = f"{PLUGIN} was built with CANN {built}, but CANN {installed} is installed"
        fix = (
            f"Install CANN {built}: with another version, symbols may be undefined and operators may differ."
        )
        yield warning("pairs", what, fix)


def _built_with(plugin: Path) -> dict[str, str]:
    """full_version and cann_version, as written by the build of paddle-custom-npu."""
    text = content(plugin / "npu" / "__init__.py")
    return dict(re.findall(r"^(full_version|cann_version)\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))


def _release(version: str) -> str:
    """The version without the local part that builds add: 3.3.1 of 3.3.1+cpu."""
    return version.partition("+")[0]


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mc2(setup: Setup) -> Iterator[Finding]:
    """`FLAGS_NPU_MC2`, and whether CANN and the driver have products fused with collectives.

    A problem: MC2 on CANN below 8.0.RC2 or a driver below 24.1.RC2: a card ends in a bus error, and plugins
    that were built with an older CANN return memory that nobody has written to.
    """
    asked = setup.environ.get(MC2_VARIABLE, "").strip() not in ("", "0")
    if asked and not setup.environ[MC2_VARIABLE].strip().isdecimal():
        what = f"{MC2_VARIABLE} is {setup.environ[MC2_VARIABLE]!r}, but {names.TITLE} reads it as a number"
        yield error("mc2", what, f"Set {MC2_VARIABLE}=1, or unset it.")
        return
    if setup.kind == "cpu":
        return
    old = list(_too_old(setup))
    if not old:
        yield ok("mc2", f"products fused with collectives are supported{' and enabled' * asked}")
        return
    needs = f"Install CANN {MC2_CANN} or later with driver {MC2_DRIVER} or later"
    if asked:
        what = (
            f"{MC2_VARIABLE}={setup.environ[MC2_VARIABLE]} requests MC2, which {' and '.join(old)} cannot run"
        )
        yield error("mc2", what, f"{needs}; until then unset {MC2_VARIABLE} and do not use --overlap mc2.")
    else:
        what = f"{' and '.join(old)} cannot run products fused with collectives (--overlap mc2)"
        yield warning("mc2", what, f"{needs}, or use --overlap pipelined instead of mc2.")


def _too_old(setup: Setup) -> Iterator[str]:
    found = [("CANN", setup.cann_level, MC2_CANN)]
    if setup.kind == "card":
        found.append(("the driver", driver_version(setup.root), MC2_DRIVER))
    for name, version, first in found:
        if version is not None and is_before(version, first):
            yield f"{name} {version}"


CHECKS = {"pairs": versions, "mc2": mc2}
