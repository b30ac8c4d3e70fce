"""CANN, the driver, the cards, matching versions, and environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import virtual_npu
from llm_npu.cann.chip import ROW, chips
from llm_npu.models.library import names
from paddle_fused.cann_installation import MC2_DRIVER, content, field, is_before, library_folders

from ..finding import Finding, error, ok, warning
from ..setup import Setup

DRIVER = "usr/local/Ascend/driver/version.info"
LIBRARY = "libascendcl.so"
SOURCE = "Run `source {}`, here and in the shell that starts training."


def cann(setup: Setup) -> Iterator[Finding]:
    """CANN: `ASCEND_HOME_PATH`, `ASCEND_TOOLKIT_HOME`, the default folders; `version.cfg`,
    `ascend_toolkit_install.info`; `LD_LIBRARY_PATH`.

    A problem: missing or moved CANN; components of different versions; `set_env.sh` not sourced.
    """
    installation, needed = setup.cann, setup.kind == "card"
    if installation is None:
        if needed:
            fix = "Install Ascend-cann-toolkit and the kernels of the card's chip, and source its set_env.sh."
            yield error("cann", "CANN is not installed, but a card needs it", fix)
        else:
            yield ok("cann", "not installed, and not needed without a card")
        return
    judge = error if needed else warning
    if not installation.folder.is_dir():
        fix = f"Unset {installation.named_by}, or source the set_env.sh of the installed CANN."
        yield judge("cann", f"{installation.named_by} is {installation.folder}, which does not exist", fix)
    elif installation.version is None:
        fix = "Install Ascend-cann-toolkit again: version.cfg or ascend_toolkit_install.info is missing."
        yield judge("cann", f"{installation.folder} does not contain the version of CANN", fix)
    else:
        yield ok("cann", f"CANN {installation.version} in {installation.folder}")
        yield from _components(setup)
        if needed and not any((folder / LIBRARY).exists() for folder in library_folders(setup.environ)):
            what = f"{LIBRARY} is not in any folder of LD_LIBRARY_PATH, so the plugin cannot be loaded"
            yield error("cann", what, SOURCE.format(_set_env(installation.folder)))


def _components(setup: Setup) -> Iterator[Finding]:
    others = {name: v for name, v in setup.cann.components.items() if v != setup.cann.version}
    if others:
        names = ", ".join(f"{name} {version}" for name, version in sorted(others.items()))
        what = f"CANN is {setup.cann.version}, but some components have other versions: {names}"
        fix = f"Install the toolkit and the kernels of the same version, for example {setup.cann.version}."
        yield warning("cann", what, fix)


def _set_env(cann: Path) -> Path:
    """The set_env.sh in an installation's folder, or next to the folder ``latest``."""
    inside = cann / "set_env.sh"
    return inside if inside.exists() else cann.parent / "set_env.sh"


def operators(setup: Setup) -> Iterator[Finding]:
    """Libraries, symbols, functions and types that paddle-custom-npu calls, compared with CANN's files.

    Nothing is loaded or run. The plugin looks up functions in `libopapi.so`; the types that a chip supports
    are in `opp/built-in/op_impl/ai_core/tbe/config/<chip>`.

    A problem: a missing library, symbol, function or type (the finding lists the kernels and steps of a Llama
    training that need it); operators of another chip; a type that runs on the AI CPU.
    """
    if setup.kind != "card" or setup.cann is None or not setup.cann.folder.is_dir():
        return
    # Imported late: the package needs elftools, which may be missing.
    from llm_npu.cann import bridge
    from llm_npu.cann.check import compare

    library = bridge.in_use(setup.environ)
    if library is not None:
        names = ", ".join(bridge.forwards_to(library))
        yield ok("operators", f"{library} forwards to {names}; {bridge.ADVICE}")
    chip = setup.chip
    if chip is not None and chip.unsupported:
        yield error("operators", f"the cards are {chip.title}: {chip.unsupported}", "Use a 910B or a 910C.")
    report = compare(
        setup.card.plugin,
        setup.cann,
        chip,
        environ=setup.environ,
        paddle=virtual_npu.paddle_folder(),
        root=setup.root,
    )
    yield from (error("operators", gap.message, gap.fix) for gap in report.stopping)
    others = [gap.name for gap in report.gaps if not gap.stops]
    if others:
        what = f"{len(others)} functions or types are missing that a Llama training does not need: "
        fix = "Other models may need them: install the CANN that the plugin was built with."
        yield warning("operators", what + ", ".join(others), fix)
    for reason in report.unreadable:
        fix = "Reinstall the package that contains the file."
        yield warning("operators", f"{reason}; its contents are unknown", fix)
    if not report.stopping and not report.unreadable:
        yield ok("operators", f"{report.summary()}; CANN {setup.cann.version or 'of unknown version'}")


def driver_version(root: Path) -> str | None:
    """The version of the driver installed below ``root``."""
    return field(content(root / DRIVER), "Version")


def driver(setup: Setup) -> Iterator[Finding]:
    """The driver's `version.info`, and the cards' health from `npu-smi info`.

    A problem: npu-smi fails; no card; a card whose health is not OK.
    """
    version = driver_version(setup.root)
    if setup.kind != "card":
        yield ok("driver", f"{version or 'not installed'}; not needed without a card")
        return
    if version is None:
        fix = "Install the driver, or mount the file into the container (docker run -v FILE:FILE:ro)."
        yield warning("driver", f"/{DRIVER} does not contain the version", fix)
    else:
        yield ok("driver", f"driver {version}")
    info = setup.npu_smi
    if info is None:
        fix = "Install the driver, or mount /usr/local/bin/npu-smi and /usr/local/dcmi into the container."
        yield warning("driver", "npu-smi is not installed, so the health of the cards is unknown", fix)
        return
    restart = "Check `npu-smi info` and dmesg; reset the card (npu-smi set -t reset) or restart the host."
    cards = ROW.findall(info.stdout)
    ill = [f"card {number} ({chip}) is {health}" for number, chip, health in cards if health != "OK"]
    if info.returncode != 0 or not cards:
        output = (info.stderr or info.stdout).strip().splitlines()
        yield error("driver", f"`npu-smi info` lists no card: {(output or ['no output'])[-1]}", restart)
    elif ill:
        yield error("driver", f"npu-smi: {', '.join(ill)}", restart)
    else:
        yield ok("driver", f"npu-smi: {len(cards)} card(s), {cards[0][1]}, health OK")


PLUGIN = "paddle-custom-npu"
MC2_VARIABLE = "FLAGS_NPU_MC2"  # PaddleNLP 3.0.0b4 and PaddleFormers 1.2.0 parse it as an integer


def versions(setup: Setup) -> Iterator[Finding]:
    """The versions that paddle-custom-npu was built with.

    A problem: a different paddlepaddle or CANN.
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
        "pairs", what, f"Install {PLUGIN} {paddle}, or paddlepaddle {plugin}: the versions must be equal."
    )


def _pair_with_cann(built: str, installed: str) -> Iterator[Finding]:
    if is_before(built, installed) or is_before(installed, built):
        what = f"{PLUGIN} was built with CANN {built}, but CANN {installed} is installed"
        fix = (
            f"Install CANN {built}: with another version, symbols may be undefined and operators may differ."
        )
        yield warning("pairs", what, fix)


def _built_with(plugin: Path) -> dict[str, str]:
    """full_version and cann_version, as recorded by the build of paddle-custom-npu."""
    text = content(plugin / "npu" / "__init__.py")
    return dict(re.findall(r"^(full_version|cann_version)\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))


def _release(version: str) -> str:
    """The version without the local part that builds add: 3.3.1 for 3.3.1+cpu."""
    return version.partition("+")[0]


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mc2(setup: Setup) -> Iterator[Finding]:
    """`FLAGS_NPU_MC2`, and whether CANN and the driver support matmuls fused with collectives (MC2).

    A problem: MC2 on CANN below 8.0.RC2 (910C: 8.2.RC1) or a driver below 24.1.RC2. A card then fails with a
    bus error, and plugins built with an older CANN return uninitialized memory.
    """
    requested = setup.environ.get(MC2_VARIABLE, "").strip() not in ("", "0")
    if requested and not setup.environ[MC2_VARIABLE].strip().isdecimal():
        what = f"{MC2_VARIABLE} is {setup.environ[MC2_VARIABLE]!r}, but {names.TITLE} reads it as a number"
        yield error("mc2", what, f"Set {MC2_VARIABLE}=1, or unset it.")
        return
    if setup.kind == "cpu":
        return
    old = list(_too_old(setup))
    if not old:
        yield ok("mc2", f"matmuls fused with collectives are supported{' and enabled' * requested}")
        return
    needs = f"Install CANN {_first_with_mc2(setup)} or later with driver {MC2_DRIVER} or later"
    if requested:
        what = (
            f"{MC2_VARIABLE}={setup.environ[MC2_VARIABLE]} enables MC2, which {' and '.join(old)} cannot run"
        )
        yield error("mc2", what, f"{needs}; until then unset {MC2_VARIABLE} and do not use --overlap mc2.")
    else:
        what = f"{' and '.join(old)} cannot run matmuls fused with collectives (--overlap mc2)"
        yield warning("mc2", what, f"{needs}, or use --overlap pipelined instead of mc2.")


def _first_with_mc2(setup: Setup) -> str:
    return (setup.chip or chips()["A2"]).mc2


def _too_old(setup: Setup) -> Iterator[str]:
    required = [("CANN", setup.cann_level, _first_with_mc2(setup))]
    if setup.kind == "card":
        required.append(("the driver", driver_version(setup.root), MC2_DRIVER))
    for name, version, first in required:
        if version is not None and is_before(version, first):
            yield f"{name} {version}"


def variables(setup: Setup) -> Iterator[Finding]:
    """Environment variables named like those of Paddle, HCCL or CANN.

    A problem: a misspelled name; a variable that nothing reads; one that only a card's libraries read.
    """
    # Imported late: the package needs yaml, which may be missing.
    from llm_npu.config import ineffective_variables

    ineffective = ineffective_variables(setup.kind, setup.environ)
    for name, why in ineffective:
        yield warning(
            "variables", f"{name} has no effect: {why}", f"Run `unset {name}`, or correct its name."
        )
    if not ineffective:
        yield ok("variables", "none is misspelled or ineffective")


CHECKS = {
    "cann": cann,
    "driver": driver,
    "pairs": versions,
    "operators": operators,
    "mc2": mc2,
    "variables": variables,
}
