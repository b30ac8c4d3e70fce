"""The record of the kernels that ran on the virtual NPU, and where a card would have run them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import re
import weakref
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


class HostFallback(NamedTuple):
    """A kernel that a card would not run on its cores, at the moment that it is called.

    ``dtype`` and ``shape`` are those of the tensor that is the cause: the largest float64 (complex128) one
    among the kernel's arguments, else the largest one of the kernel's own dtype (None if it has none).
    ``born``: the kernel makes the float64 tensor from other dtypes.
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
def watch_host_fallbacks(observer: Callable[[HostFallback], bool]) -> Iterator[None]:
    """While in force, ``observer`` is called with every kernel that a card would not run on its cores.

    It is called on the thread that calls the kernel, before the kernel runs, and must not use Paddle: it may
    look at the Python stack. What it returns says whether the kernel is refused, which Paddle raises as
    NotImplementedError. Of nested watches, the innermost is told. What the observer raises refuses the kernel
    and is raised again at the end. RuntimeError if the plugin is not loaded.
    """
    watching = _Watching(observer)
    listed = weakref.ref(watching)  # a watch that nobody has ended goes with its last reference
    _watches.append(listed)
    _observe(_callback())
    try:
        yield
    finally:
        _watches.remove(listed)
        if not _watches:
            _observe(None)
    if watching.raised:
        raise watching.raised[0]


class _Watching:
    """One watch, and what its observer has raised."""

    def __init__(self, observer: Callable[[HostFallback], bool]):
        self.observer = observer
        self.raised: list[BaseException] = []

    def refuses(self, fallback: HostFallback) -> bool:
        try:
            return self.observer(fallback)
        except BaseException as error:
            self.raised.append(error)
            return True


_watches: list[weakref.ref[_Watching]] = []


@functools.cache
def _callback():
    """The one function that the plugin calls. It is kept: the plugin may call it at any time."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int,
        *[ctypes.c_char_p] * 4,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int,
        ctypes.c_int,
    )

    def tell(kernel, _, placement, dtype, dims, rank, born) -> int:
        watching = _watches[-1]() if _watches else None
        if watching is None:
            return 0
        shape = tuple(dims[:rank]) if dims else None
        fallback = HostFallback(kernel.decode(), placement.decode(), dtype.decode(), shape, bool(born))
        return int(watching.refuses(fallback))

    return kind(tell)


def _observe(callback) -> None:
    function = _plugin().virtual_npu_observe_host_fallbacks
    function.argtypes, function.restype = [ctypes.c_void_p], None
    function(None if callback is None else ctypes.cast(callback, ctypes.c_void_p))


def placement(kernel: str, dtype: str) -> Placement:
    """Where a card runs the kernel for the dtype; "host" where ``card_dtypes`` lacks that dtype."""
    if dtype not in card_dtypes(kernel):
        return "host"
    wide = dtype in ("float64", "complex128")
    return "aicpu" if wide or dtype in _table("aicpu_kernels").get(kernel, ()) else "npu"


def card_dtypes(kernel: str) -> tuple[str, ...]:
    """The dtypes for which paddle-custom-npu, or Paddle itself for any custom device, has the kernel."""
    return tuple(sorted({*_table("npu_kernels").get(kernel, ()), *registered_dtypes("").get(kernel, ())}))


@functools.cache
def registered_dtypes(*devices: str) -> dict[str, set[str]]:
    """The dtypes for which Paddle has a kernel of each name for these device types.

    "" stands for kernels of Paddle itself that serve every custom device; releases differ in them.
    """
    from paddle.base import core  # not before the plugin is in force

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
    return json.loads((PACKAGE_FOLDER.parent / "data" / f"{name}.json").read_text(encoding="utf-8"))


def _plugin() -> ctypes.CDLL:
    plugin = loaded_plugin()
    if plugin is None:
        raise RuntimeError(
            "There is no record of kernels: the virtual NPU is not loaded. Call "
            "paddle_fused.virtual_npu.activate() and then import paddle."
        )
    return plugin
