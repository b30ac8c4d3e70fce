"""Chooses the device of a process before paddle is imported: an Ascend card, the virtual NPU, or the CPU.

Paddle loads device plugins while it is being imported, so the choice is an entry in the environment, made
once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import virtual_npu
from llm_npu.cann import float_status
from llm_npu.core import machines
from llm_npu.core.errors import UserError, caused_by_the_user
from paddle_fused import host_memory

ACCEPTED = (
    "npu (a card if there is one, else the virtual NPU), npu:N, virtual_npu, virtual_npu:N, npu:card, cpu"
)


CHECK_VARIABLE = "VIRTUAL_NPU_CHECK"


@dataclass(frozen=True)
class Device:
    """``name``: for paddle.set_device. ``reason``: one line about why this device was chosen. ``dry``: the
    device computes nothing (VIRTUAL_NPU_DRY)."""

    name: str
    kind: Literal["card", "virtual", "cpu"]
    reason: str
    dry: bool = False


@dataclass(frozen=True)
class VisibleCards:
    """The Ascend cards of this machine.

    ``plugin``: the folder of paddle-custom-npu. ``count``: the number of visible cards. ``missing``: a phrase
    for each requirement that is not met; empty if cards can be used.
    """

    plugin: Path | None
    count: int
    missing: tuple[str, ...]


def find_cards(
    dev: Path = Path("/dev"), site_packages: Path | None = None, environ: Mapping[str, str] = os.environ
) -> VisibleCards:
    """Find the plugin for cards, the driver and the cards.

    ``dev`` is the folder of device nodes. ``site_packages`` is the folder in which paddle is installed and
    Paddle looks for plugins; CUSTOM_DEVICE_ROOT takes precedence, as in Paddle. The driver's nodes are
    ``davinci_manager`` and, for each card, ``davinci<N>``. ASCEND_RT_VISIBLE_DEVICES may hide cards.
    """
    missing = []
    if site_packages is None and (paddle := virtual_npu.paddle_folder()):
        site_packages = paddle.parent
    plugin = _card_plugin(site_packages, environ)
    if plugin is None:
        missing.append("the package paddle-custom-npu is not installed next to paddle")
    if not (dev / "davinci_manager").exists():
        missing.append(f"the Ascend driver is missing (no {dev / 'davinci_manager'})")
    count = sum(re.fullmatch(r"davinci\d+", node.name) is not None for node in dev.glob("davinci*"))
    if count == 0:
        missing.append(f"there is no card (no {dev / 'davinci<N>'})")
    visible = environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is not None and count > 0:
        count = min(count, sum(entry.strip().isdecimal() for entry in visible.split(",")))
        if count == 0:
            missing.append(f"ASCEND_RT_VISIBLE_DEVICES={visible!r} hides every card")
    return VisibleCards(plugin, count, tuple(missing))


def decide(name: str, cards: VisibleCards, virtual_is_active: bool, virtual_count: int) -> Device:
    """The device that ``name`` selects on a machine with ``cards``; changes nothing.

    ``virtual_is_active``: the environment has already selected the virtual NPU, which is kept unless
    ``npu:card`` is requested. Raises UserError for an unknown name or id, and for ``npu:card`` without a
    card.
    """
    match = re.fullmatch(r"(cpu)|npu:(card)|(virtual_npu|npu)(?::(\d+))?", name, re.ASCII)
    if match is None:
        raise UserError(f"The device {name!r} is unknown; accepted: {ACCEPTED}")
    cpu, only_card, npu, index = match.groups()
    if cpu:
        return Device("cpu", "cpu", "cpu was requested")
    if only_card:
        if cards.missing:
            raise UserError(
                f"npu:card requires an Ascend card, but none is usable: {'; '.join(cards.missing)}. "
                "Use npu to run on the virtual NPU instead."
            )
        return Device("npu", "card", "npu:card was requested")
    if npu == "virtual_npu":
        kind, reason = "virtual", "virtual_npu was requested"
    elif virtual_is_active:
        kind, reason = "virtual", "the environment has chosen the virtual NPU"
    elif cards.missing:
        kind, reason = "virtual", "no Ascend card was found"  # npu:card says what it lacks
    else:
        kind, reason = "card", f"{cards.count} Ascend card(s) and paddle-custom-npu are there"
    if index is None:
        return Device("npu", kind, reason)  # Paddle takes the id from FLAGS_selected_npus, else 0
    count, more = (
        (cards.count, "ASCEND_RT_VISIBLE_DEVICES chooses the visible ones")
        if kind == "card"
        else (virtual_count, "VIRTUAL_NPU_DEVICES (at most 16) sets their number")
    )
    if int(index) >= count:
        kinds = "Ascend card" if kind == "card" else "virtual NPU"
        raise UserError(
            f"The device {name} does not exist: there {'is' if count == 1 else 'are'} {count} {kinds}"
            f"{'' if count == 1 else 's'}, with ids 0 to {count - 1}; {more}"
        )
    return Device(f"npu:{int(index)}", kind, reason)


def select(name: str, checks: str | None = None) -> Device:
    """Select ``name`` as the device of this process and its children, and return the device.

    Call it before paddle is imported; afterwards only the current device is accepted.

    ``checks``: the value of ``--check_device``, for VIRTUAL_NPU_CHECK.

    Raises UserError for an unavailable name or id (see ``decide``), for an invalid variable of the virtual
    NPU or the host kernels, and for ``checks`` on another device. Raises RuntimeError if the virtual NPU is
    not usable, or if paddle was imported with another device.
    """
    machines.check()
    cards = find_cards()
    with caused_by_the_user():
        host_memory.choice()  # a bad one would be refused in the middle of the training
        device = decide(name, cards, virtual_npu.is_active(), virtual_npu.device_count())
    if checks:
        set_checks(checks, device.kind)
    if device.kind != "cpu" and (line := float_status.prepare()):
        device = replace(device, reason=f"{device.reason}; {line}")
    if device.kind == "virtual":
        with caused_by_the_user():
            virtual_npu.activate()
        return replace(device, dry=virtual_npu.is_dry())
    wanted = str(cards.plugin) if device.kind == "card" else ""  # empty keeps Paddle from looking for plugins
    if "paddle" in sys.modules:
        if os.environ.get("CUSTOM_DEVICE_ROOT", "") != wanted:
            raise RuntimeError(
                f"paddle was already imported with another device; select {name} before the import, in a new "
                "process"
            )
        return device
    virtual_npu.deactivate()
    os.environ["CUSTOM_DEVICE_ROOT"] = wanted
    if device.kind == "card":
        os.environ[virtual_npu.LAUNCHED_DEVICE] = "npu"
    return device


def set_checks(checks: str, kind: str) -> None:
    """Sets VIRTUAL_NPU_CHECK for this process and those it starts."""
    flag = f"--check_device {checks}"
    if kind != "virtual":
        device = "an Ascend card" if kind == "card" else "the CPU"
        raise UserError(
            f"{flag} needs the virtual NPU, but the device is {device}; set --device virtual_npu or remove it"
        )
    if os.environ.get("VIRTUAL_NPU_DRY") == "1":
        raise UserError(
            f"{flag} checks computed values and running work, but a dry run (VIRTUAL_NPU_DRY=1) computes "
            "nothing; remove one of them"
        )
    if (other := os.environ.get(CHECK_VARIABLE) or checks) != checks:
        raise UserError(f"{flag} contradicts {CHECK_VARIABLE}={other} of the environment; unset one of them")
    os.environ[CHECK_VARIABLE] = checks


def _card_plugin(site_packages: Path | None, environ: Mapping[str, str]) -> Path | None:
    folders = [Path(environ["CUSTOM_DEVICE_ROOT"])] if environ.get("CUSTOM_DEVICE_ROOT") else []
    if site_packages is not None:
        folders.append(site_packages / "paddle_custom_device")
    for folder in folders:
        if (folder / virtual_npu.LIBRARY).is_file() and not virtual_npu.is_virtual(folder):
            return folder
    return None
