"""The record of the kernels that ran on the virtual NPU, and where a card would have run them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from .activation import loaded_plugin
from .plugin_files import PACKAGE_FOLDER

Placement = Literal["npu", "host", "aicpu"]


class KernelRecord(NamedTuple):
    """How often one kernel ran for one dtype.

    ``placement`` is where paddle-custom-npu would run it: ``npu`` on the card's cores, ``aicpu`` on the
    card's slow control processor (float64), ``host`` on the host's CPU, because the plugin for the card has
    no such kernel.
    """

    name: str
    dtype: str
    placement: Placement
    calls: int


class Departure(NamedTuple):
    """A kernel that a card would not run on its cores, at the moment that it is called.

    ``dtype`` and ``shape`` are those of the tensor to blame: the largest double one among the kernel's
    arguments, else the largest one of the kernel's own dtype (None if it has none). ``born``: the kernel
    makes the double from other dtypes.
    """

    kernel: str
    placement: Placement
    dtype: str
    shape: tuple[int, ...] | None
    born: bool


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


@contextlib.contextmanager
def watch_departures(observer: Callable[[Departure], bool]) -> Iterator[None]:
    """While in force, ``observer`` is called with every kernel that a card would not run on its cores.

    It is called on the thread that calls the kernel, before the kernel runs, and must not use Paddle: it may
    look at the Python stack. What it returns says whether the kernel is refused, which Paddle raises as
    NotImplementedError. Of nested watches, the innermost is told. What the observer raises refuses the kernel
    and is raised again at the end. RuntimeError if the plugin is not loaded.
    """
    raised: list[BaseException] = []

    def tell(kernel, _, placement, dtype, dims, rank, born) -> int:
        try:
            shape = tuple(dims[:rank]) if dims else None
            found = Departure(kernel.decode(), placement.decode(), dtype.decode(), shape, bool(born))
            return int(observer(found))
        except BaseException as error:
            raised.append(error)
            return 1

    function = _plugin().virtual_npu_observe_departures
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    callback = _OBSERVER(tell)
    before = function(ctypes.cast(callback, ctypes.c_void_p))
    try:
        yield
    finally:
        function(before)
    if raised:
        raise raised[0]


_OBSERVER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *[ctypes.c_char_p] * 4,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int,
    ctypes.c_int,
)


def placement(kernel: str, dtype: str) -> Placement:
    """Where a card runs the kernel for the dtype; "host" where paddle-custom-npu does not have it."""
    if dtype not in card_dtypes(kernel):
        return "host"
    wide = dtype in ("float64", "complex128")
    return "aicpu" if wide or dtype in _table("aicpu_kernels").get(kernel, ()) else "npu"


def card_dtypes(kernel: str) -> tuple[str, ...]:
    """The dtypes for which paddle-custom-npu registers the kernel; none if it does not have it."""
    return tuple(_table("npu_kernels").get(kernel, ()))


@functools.cache
def _table(name: str) -> dict[str, list[str]]:
    return json.loads((PACKAGE_FOLDER.parent / "data" / f"{name}.json").read_text(encoding="utf-8"))


def _plugin() -> ctypes.CDLL:
    plugin = loaded_plugin()
    if plugin is None:
        raise RuntimeError(
            "There is no record of kernels: the virtual NPU is not loaded. Call "
            "paddle_fused.virtual_npu.activate() and then import paddle."
        )
    return plugin
