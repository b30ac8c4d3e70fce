"""The record of the kernels that ran on the virtual NPU, and where a card would run them."""

from __future__ import annotations

import ctypes
import functools
import json
import re
from typing import Literal, NamedTuple

from .activation import loaded_plugin
from .plugin_files import PACKAGE_FOLDER

Placement = Literal["npu", "host", "aicpu"]
# What a card's cores do not compute, and what they do compute.
NARROWER = {"float64": "float32", "complex128": "complex64"}


class KernelRecord(NamedTuple):
    """The number of calls of one kernel with one dtype.

    ``placement``: where paddle-custom-npu would run it. ``npu``: on the card's cores; ``aicpu``: on the
    card's slow control processor (float64); ``host``: on the host's CPU, because the plugin for cards has no
    such kernel.
    """

    name: str
    dtype: str
    placement: Placement
    calls: int


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
    """Where a card runs the kernel with this dtype; "host" if ``card_dtypes`` lacks the dtype."""
    if dtype not in card_dtypes(kernel):
        return "host"
    return "aicpu" if dtype in NARROWER or dtype in _table("aicpu_kernels").get(kernel, ()) else "npu"


def card_dtypes(kernel: str) -> tuple[str, ...]:
    """The dtypes of the kernel in paddle-custom-npu, or in Paddle itself for any custom device."""
    return tuple(sorted({*_table("npu_kernels").get(kernel, ()), *registered_dtypes("").get(kernel, ())}))


@functools.cache
def registered_dtypes(*devices: str) -> dict[str, set[str]]:
    """The dtypes of every kernel that Paddle has for these device types, by kernel.

    "" means Paddle's own kernels for all custom devices, which differ between releases.
    """
    from paddle.base import core  # not before the plugin is active

    kernels = core._get_all_register_op_kernels("phi")
    found: dict[str, set[str]] = {}
    for name, keys in kernels.items():
        for key in keys:
            words = re.search(r"data_type\[(?:::phi::dtype::)?(.*?)\].*place\[Place\((\w*):", key)
            if words and words[2] in devices:
                found.setdefault(name, set()).add(_DTYPES.get(words[1], words[1]))
    return found


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
            "There is no record of kernels: the virtual NPU is not loaded. Call "
            "virtual_npu.activate() and then import paddle."
        )
    return loaded
