"""The record of the kernels that ran on the virtual NPU, and where a card would have run them."""

from __future__ import annotations

import ctypes
import json
from typing import Literal, NamedTuple

from .activation import loaded_plugin


class KernelRecord(NamedTuple):
    """How often one kernel ran for one dtype.

    ``placement`` is where paddle-custom-npu would run it: ``npu`` on the card's cores, ``aicpu`` on the
    card's slow control processor (float64), ``host`` on the host's CPU, because the plugin for the card has
    no such kernel.
    """

    name: str
    dtype: str
    placement: Literal["npu", "host", "aicpu"]
    calls: int


def kernel_record() -> list[KernelRecord]:
    """What ran since the start or the last reset; RuntimeError if the plugin is not loaded."""
    function = _plugin().virtual_npu_kernel_record
    function.restype = ctypes.c_char_p
    return [KernelRecord(*row) for row in json.loads(function().decode())]


def reset_kernel_record() -> None:
    """Empties the record; RuntimeError if the plugin is not loaded."""
    function = _plugin().virtual_npu_reset_kernel_record
    function.restype = None
    function()


def _plugin() -> ctypes.CDLL:
    plugin = loaded_plugin()
    if plugin is None:
        raise RuntimeError(
            "There is no record of kernels: the virtual NPU is not loaded. Call "
            "paddle_fused.virtual_npu.activate() and then import paddle."
        )
    return plugin
