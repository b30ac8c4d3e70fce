"""The environment variables of the plugin: accepted values, defaults and meaning.

Values are checked here, before the plugin is loaded, because Python reports invalid values better. The plugin
reads the same variables from the environment. An empty value counts as unset.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paddle_fused import cann_releases

PREFIX = "VIRTUAL_NPU_"
MAX_DEVICES = 16  # Paddle keeps memory statistics only for device ids 0 to 15
DEVICES = {"910b": 8, "910c": 16, "950": 8}  # per server with eight NPUs; a 910C has two dies
FLOAT_STATUS = ("allowed", "refused")


@dataclass(frozen=True)
class Setting:
    """An environment variable.

    Attributes:
        accepts: completes the sentence "it accepts ...".
        is_valid: returns whether a value is accepted.
        nearest: returns the accepted value closest to a rejected one, for the message.
    """

    meaning: str
    default: str
    accepts: str
    is_valid: Callable[[str], bool]
    nearest: Callable[[str], str] | None = None


def _is_device_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_DEVICES


def _is_positive_number(text: str) -> bool:
    try:
        return 0 < float(text) <= 1e6
    except ValueError:
        return False


def _is_zero_or_more(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1e6
    except ValueError:
        return False


def _is_switch(text: str) -> bool:
    return text in ("0", "1")


def _is_new_file(text: str) -> bool:
    return os.path.isdir(os.path.dirname(text) or ".") and not os.path.isdir(text)


@functools.cache
def _cann_calls() -> dict[str, list[str]]:
    """The table of csrc/observe/kernel_path.h."""
    table = Path(__file__).parent / "data" / "cann_calls.json"
    return json.loads(table.read_text(encoding="utf-8"))


def aclnn_kernels() -> tuple[str, ...]:
    """The kernels of paddle-custom-npu that call aclnn."""
    return tuple(kernel for kernel, calls in _cann_calls().items() if {"aclnn", "also aclnn"} & set(calls))


def aclop_kernels() -> dict[str, str]:
    """The kernels of paddle-custom-npu that run an aclop with every CANN release, and the aclop's type."""
    calls_of = _cann_calls().items()
    return {
        k: call.removeprefix("type ") for k, calls in calls_of for call in calls if call.startswith("type ")
    }


def _is_call_of_aclnn(text: str) -> bool:
    kernel = text.partition(":")[0]
    return kernel in aclnn_kernels() and re.fullmatch("(:[1-9][0-9]{0,8})?", text[len(kernel) :]) is not None


def _is_seed(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 10**6


def _are_checks(text: str) -> bool:
    names = text.split(",")
    return set(names) <= set(CHECKS) and len(set(names)) == len(names)


def _is_cann_release(text: str) -> bool:
    return text in cann_releases.RELEASES or text in cann_releases.SHORT_NAMES


CHECKS = ("race", "init", "memory", "sync")
WARNINGS = ("0", "1", "host")
LIBOPAPI = ("present", "gone")
FLASH_ATTENTION_FORMS = ("tensor13", "v10")
INSTRUCTION_SETS = ("baseline", "neon", "avx2", "avx512", "avx512_bf16", "amx")

SETTINGS: dict[str, Setting] = {
    "VIRTUAL_NPU_DEVICES": Setting(
        "number of devices",
        "8; 16 with VIRTUAL_NPU_CARD=910c",
        f"a whole number from 1 to {MAX_DEVICES}",
        _is_device_count,
    ),
    "VIRTUAL_NPU_MEMORY_GB": Setting(
        "memory of each device in GiB",
        "4/5 of the host's memory, at most 64",
        "a number above zero, such as 32 or 0.5",
        _is_positive_number,
    ),
    "VIRTUAL_NPU_STRICT": Setting(
        "1 refuses kernels that a card does not have for the dtype", "0", "0 or 1", _is_switch
    ),
    "VIRTUAL_NPU_BRIDGE": Setting("0 disables Paddle's CPU kernels on npu", "1", "0 or 1", _is_switch),
    "VIRTUAL_NPU_LINK_GBPS": Setting(
        "bandwidth of a device's link in GB/s, per direction",
        "unlimited",
        "a number above zero, such as 25",
        _is_positive_number,
    ),
    "VIRTUAL_NPU_LINK_US": Setting(
        "latency of a collective in microseconds", "0", "zero or a positive number", _is_zero_or_more
    ),
    "VIRTUAL_NPU_RDMA_GBPS": Setting(
        "bandwidth of a device's port to other machines in GB/s, per direction",
        "unlimited",
        "a number above zero, such as 25",
        _is_positive_number,
    ),
    "VIRTUAL_NPU_RDMA_US": Setting(
        "latency of a collective between machines in microseconds",
        "0",
        "zero or a positive number",
        _is_zero_or_more,
    ),
    "VIRTUAL_NPU_REALTIME": Setting(
        "1 schedules the threads of communication streams with priority (SCHED_FIFO, needs CAP_SYS_NICE)",
        "0",
        "0 or 1",
        _is_switch,
    ),
    "VIRTUAL_NPU_SYNC_SENDS": Setting(
        "1 makes a send block until it is received, as on a card", "0", "0 or 1", _is_switch
    ),
    "VIRTUAL_NPU_COLLECTIVE_TIMEOUT": Setting(
        "timeout in seconds for a rank that cannot reach a collective",
        "5",
        "a number above zero, such as 5",
        _is_positive_number,
    ),
    "VIRTUAL_NPU_COLLECTIVE_LIMIT": Setting(
        "timeout in seconds for a rank that does not reach a collective",
        "600",
        "a number above zero, such as 600",
        _is_positive_number,
    ),
    "VIRTUAL_NPU_DRY": Setting(
        "1 accounts for memory, operators and collectives without computing", "0", "0 or 1", _is_switch
    ),
    "VIRTUAL_NPU_CHECK": Setting(
        "errors to look for: race (unordered accesses), init (use of memory that was never written), memory "
        "(bounds, use after free), sync (host waits for the device, counted by line)",
        "none",
        "a list of " + ", ".join(CHECKS) + ", separated by commas",
        _are_checks,
    ),
    "VIRTUAL_NPU_DEFER": Setting(
        "launches only enqueue work, which starts as late as the program's waits allow; the number seeds the "
        "order between streams",
        "none",
        "a whole number from 1 to 1000000",
        _is_seed,
    ),
    "VIRTUAL_NPU_JOURNAL": Setting(
        "file that records every operator, collective and allocation as a line of JSON",
        "none",
        "a file in an existing folder",
        _is_new_file,
    ),
    "VIRTUAL_NPU_TRACE": Setting("1 logs every kernel to stderr", "0", "0 or 1", _is_switch),
    "VIRTUAL_NPU_AICPU_WARNINGS": Setting(
        "0 turns off the warnings about float64; host adds other kernels that a card would run on the host "
        "or its AICPU",
        "1",
        "one of " + ", ".join(WARNINGS),
        WARNINGS.__contains__,
    ),
    "VIRTUAL_NPU_REFUSE": Setting(
        "a call that CANN refuses, leaving its output uninitialized without an error",
        "none",
        "a kernel that runs through aclnn, and the number of the call, such as matmul or matmul:3",
        _is_call_of_aclnn,
    ),
    "VIRTUAL_NPU_QUIET": Setting("1 suppresses the banner", "0", "0 or 1", _is_switch),
    "VIRTUAL_NPU_CANN": Setting(
        "the emulated release of CANN",
        f"{cann_releases.DEFAULT}; "
        + ", ".join(f"{release} for the {card}" for card, release in cann_releases.DEFAULTS_BY_CARD.items()),
        cann_releases.ACCEPTED,
        _is_cann_release,
        cann_releases.nearest,
    ),
    "VIRTUAL_NPU_CARD": Setting(
        "the emulated card; a 950 refuses the kernels that paddle-custom-npu runs as aclop",
        "910b",
        "one of " + ", ".join(DEVICES),
        DEVICES.__contains__,
    ),
    "VIRTUAL_NPU_FLOAT_STATUS": Setting(
        "refused: the chip lacks FloatStatus operators, so the first aclop fails, as reported for the 910C",
        "allowed",
        "one of " + ", ".join(FLOAT_STATUS),
        FLOAT_STATUS.__contains__,
    ),
    "VIRTUAL_NPU_LIBOPAPI": Setting(
        "gone: CANN without libopapi.so; kernels that check for it fall back to aclop, others crash",
        "present",
        "one of " + ", ".join(LIBOPAPI),
        LIBOPAPI.__contains__,
    ),
    "VIRTUAL_NPU_FLASH_ATTENTION_ABI": Setting(
        "signature of flash_attention_npu: 13 arguments, with sequence lengths, or 10",
        "tensor13",
        "one of " + ", ".join(FLASH_ATTENTION_FORMS),
        FLASH_ATTENTION_FORMS.__contains__,
    ),
    "PADDLE_FUSED_ISA": Setting(
        "instruction set of the host kernels: baseline, neon (aarch64), avx2, avx512, avx512_bf16 or amx",
        "the widest of the machine",
        "one of " + ", ".join(INSTRUCTION_SETS),
        INSTRUCTION_SETS.__contains__,
    ),
}


def check_settings(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ValueError for an unknown ``VIRTUAL_NPU_*`` variable or an invalid value."""
    for name in sorted(environ):
        if not name.startswith(PREFIX) and name not in SETTINGS:
            continue
        value = environ[name]
        setting = SETTINGS.get(name)
        if setting is None:
            nearest = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0)[0]
            raise ValueError(
                f"The environment variable {name} is unknown; the nearest is {nearest} "
                f"({SETTINGS[nearest].meaning}). Accepted: {', '.join(SETTINGS)}."
            )
        if value and not setting.is_valid(value):
            nearest = f" (nearest: {setting.nearest(value)})" if setting.nearest else ""
            raise ValueError(
                f"{name} is {value!r} ({setting.meaning}); it accepts {setting.accepts}{nearest}. "
                f"Unset it for the default ({setting.default})."
            )


def cann_level(environ: Mapping[str, str] = os.environ) -> str:
    """The emulated release of CANN, such as 8.0.0. Raises ValueError if the value is not a release."""
    return cann_releases.emulated(environ)


def card(environ: Mapping[str, str] = os.environ) -> str:
    """The emulated card: 910b, 910c or 950."""
    return _value("VIRTUAL_NPU_CARD", environ)


def warned_kernels(environ: Mapping[str, str] = os.environ) -> str:
    """The kernels with a warning: 0 (none), 1 (float64) or host (all other fallbacks as well)."""
    return _value("VIRTUAL_NPU_AICPU_WARNINGS", environ)


def checks(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The chosen checks, such as ("race", "init")."""
    return tuple(name for name in CHECKS if name in environ.get("VIRTUAL_NPU_CHECK", "").split(","))


def collective_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds after which a rank that cannot reach a collective is reported."""
    return float(_value("VIRTUAL_NPU_COLLECTIVE_TIMEOUT", environ))


def device_count(environ: Mapping[str, str] = os.environ) -> int:
    """The number of virtual devices. Raises ValueError if it is out of range."""
    check_settings(environ)
    return int(environ.get("VIRTUAL_NPU_DEVICES") or DEVICES[card(environ)])


def _value(name: str, environ: Mapping[str, str]) -> str:
    return environ.get(name) or SETTINGS[name].default
