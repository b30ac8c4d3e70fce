"""The kernel record of the virtual NPU, the journal, and call sites for the profiler."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from .activation import PACKAGE_FOLDER, is_active, loaded_plugin
from .settings import aclnn_kernels

Placement = Literal["npu", "host", "aicpu"]
Interface = Literal["aclnn", "aclop", ""]
# dtypes that a card's cores do not support -> the supported dtype to cast to
NARROWER = {"float64": "float32", "complex128": "complex64"}
STEP_BEGINS, STEP_ENDS = "step begins", "step ends"  # marks in the journal


class KernelRecord(NamedTuple):
    """The number of calls of one kernel with one dtype.

    Attributes:
        placement: where paddle-custom-npu would run the kernel: "npu" (the card's cores), "aicpu" (the card's
            slow control processor, for float64) or "host" (the host CPU, if the plugin for cards does not
            have the kernel).
        path: the CANN interface through which paddle-custom-npu runs the kernel. "" for kernels without one,
            such as views and collectives, and for kernels on the host.
    """

    name: str
    dtype: str
    placement: Placement
    calls: int
    path: Interface = ""


def kernel_record() -> list[KernelRecord]:
    """The kernels since the start or the last reset. Raises RuntimeError if the plugin is not loaded."""
    function = plugin().virtual_npu_kernel_record
    function.restype = ctypes.c_char_p
    return [KernelRecord(*row) for row in json.loads(function().decode())]


def reset_kernel_record() -> None:
    """Clears the record. Raises RuntimeError if the plugin is not loaded."""
    function = plugin().virtual_npu_reset_kernel_record
    function.restype = None
    function()


def placement(kernel: str, dtype: str) -> Placement:
    """Where a card runs the kernel with this dtype. "host" if the dtype is not in ``card_dtypes``."""
    if dtype not in card_dtypes(kernel):
        return "host"
    return "aicpu" if dtype in NARROWER or dtype in _table("aicpu_kernels").get(kernel, ()) else "npu"


def card_dtypes(kernel: str) -> tuple[str, ...]:
    """The kernel's dtypes in paddle-custom-npu, or in Paddle's own kernels for custom devices."""
    return tuple(sorted({*_table("npu_kernels").get(kernel, ()), *registered_dtypes("").get(kernel, ())}))


@functools.cache
def registered_dtypes(*devices: str) -> dict[str, set[str]]:
    """The dtypes of every kernel that Paddle provides for these device types, by kernel.

    The device type "" means Paddle's own kernels for all custom devices, which differ between releases.
    """
    from paddle.base import core  # not before the plugin is active

    kernels = core._get_all_register_op_kernels("phi")
    dtypes: dict[str, set[str]] = {}
    for name, keys in kernels.items():
        for key in keys:
            words = re.search(r"data_type\[(?:::phi::dtype::)?(.*?)\].*place\[Place\((\w*):", key)
            if words and words[2] in devices:
                dtypes.setdefault(name, set()).add(_DTYPES.get(words[1], words[1]))
    return dtypes


_DTYPES = {"float": "float32", "double": "float64", "int": "int32", "int16_t": "int16", "int64_t": "int64"}
_DTYPES |= {"int8_t": "int8", "uint8_t": "uint8", "complex<float>": "complex64"}
_DTYPES |= {"complex<double>": "complex128"}


@functools.cache
def _table(name: str) -> dict[str, list[str]]:
    return json.loads((PACKAGE_FOLDER / "data" / f"{name}.json").read_text(encoding="utf-8"))


def plugin() -> ctypes.CDLL:
    """The plugin's library. Raises RuntimeError if it is not loaded."""
    loaded = loaded_plugin()
    if loaded is None:
        raise RuntimeError(
            "The virtual NPU is not loaded. Call virtual_npu.activate() before the first import of paddle."
        )
    return loaded


def is_dry() -> bool:
    """Whether VIRTUAL_NPU_DRY=1: the device accounts for operations without computing them."""
    return os.environ.get("VIRTUAL_NPU_DRY") == "1" and is_active()


def journal_file() -> Path | None:
    """The journal file of this process (VIRTUAL_NPU_JOURNAL), one per rank; None without a journal."""
    name = os.environ.get("VIRTUAL_NPU_JOURNAL")
    if not name or not is_active():
        return None
    several = int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) > 1
    return Path(f"{name}.{os.environ['PADDLE_TRAINER_ID']}" if several else name)


def mark_journal(text: str) -> None:
    """Writes a mark such as "step 1 begins" to the journal, if there is one.

    Raises OSError if the journal cannot be written.
    """
    loaded = loaded_plugin()
    if loaded is not None and journal_file() is not None:
        _raise_failure(loaded.virtual_npu_journal_mark, text.encode())


def flush_journal() -> None:
    """Writes all buffered lines of the journal to its file. Raises OSError if it cannot be written."""
    loaded = loaded_plugin()
    if loaded is not None:
        _raise_failure(loaded.virtual_npu_journal_flush)


def _raise_failure(function, *arguments) -> None:
    function.restype = ctypes.c_char_p
    if reason := function(*arguments):
        raise OSError(reason.decode())


def refuse(kernel: str, call: int = 1) -> None:
    """Refuses the ``call``-th call of ``kernel`` from now on, as ``VIRTUAL_NPU_REFUSE`` does; 0 refuses none.

    Raises ValueError for a kernel that does not run through aclnn, RuntimeError if the plugin is not loaded.
    """
    if kernel not in aclnn_kernels():
        raise ValueError(
            f"refuse: {kernel!r} does not run through aclnn; accepted: {', '.join(aclnn_kernels())}."
        )
    function = plugin().virtual_npu_refuse
    function.restype = None
    function(kernel.encode(), call)


def record_call_sites(on: bool) -> None:
    """Sets whether profiles record the program line that called each kernel. Off by default.

    Adds a few microseconds per profiled kernel. Raises RuntimeError if the plugin is not loaded.
    """
    function = plugin().virtual_npu_record_call_sites
    function.restype = None
    function(int(on))
