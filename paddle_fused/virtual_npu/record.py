"""The record of the kernels that ran on the virtual NPU, and where a card would run them."""

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
    """The number of calls of one kernel with one dtype.

    ``placement``: where paddle-custom-npu would run it. ``npu``: on the card's cores; ``aicpu``: on the
    card's slow control processor (float64); ``host``: on the host's CPU, because the plugin for cards has no
    such kernel.
    """

    name: str
    dtype: str
    placement: Placement
    calls: int


class HostFallback(NamedTuple):
    """A call of a kernel that a card would not run on its cores.

    ``dtype`` and ``shape``: of the tensor that causes it, the largest float64 (complex128) argument,
    otherwise the largest of the kernel's own dtype (None if there is none). ``born``: the kernel creates the
    float64 tensor from other dtypes.
    """

    kernel: str
    placement: Placement
    dtype: str
    shape: tuple[int, ...] | None
    born: bool


def kernel_record() -> list[KernelRecord]:
    """The kernels since the start or the last reset. Raises RuntimeError if the plugin is not loaded."""
    function = _plugin().virtual_npu_kernel_record
    function.restype = ctypes.c_char_p
    return [KernelRecord(*row) for row in json.loads(function().decode())]


def reset_kernel_record() -> None:
    """Clears the record. Raises RuntimeError if the plugin is not loaded."""
    function = _plugin().virtual_npu_reset_kernel_record
    function.restype = None
    function()


@contextlib.contextmanager
def watch_host_fallbacks(observer: Callable[[HostFallback], bool]) -> Iterator[None]:
    """Calls ``observer`` in the block for every kernel that a card would not run on its cores.

    It is called on the thread that calls the kernel, before the kernel runs. It must not use Paddle, but may
    inspect the Python stack. If it returns True the kernel is refused, and Paddle raises NotImplementedError.
    Of nested watches, only the innermost is called. An exception from the observer refuses the kernel and is
    raised again at the end of the block. Raises RuntimeError if the plugin is not loaded.
    """
    watching = _Watching(observer)
    listed = weakref.ref(watching)  # a watch that was never ended disappears with its last reference
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
    """A watch, and the exceptions of its observer."""

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
    """The function that the plugin calls. It is kept alive, because the plugin may call it at any time."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int,
        *[ctypes.c_char_p] * 4,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int,
        ctypes.c_int,
    )

    def report(kernel, _, placement, dtype, dims, rank, born) -> int:
        watching = _watches[-1]() if _watches else None
        if watching is None:
            return 0
        shape = tuple(dims[:rank]) if dims else None
        fallback = HostFallback(kernel.decode(), placement.decode(), dtype.decode(), shape, bool(born))
        return int(watching.refuses(fallback))

    return kind(report)


def _observe(callback) -> None:
    function = _plugin().virtual_npu_observe_host_fallbacks
    function.argtypes, function.restype = [ctypes.c_void_p], None
    function(None if callback is None else ctypes.cast(callback, ctypes.c_void_p))


def placement(kernel: str, dtype: str) -> Placement:
    """Where a card runs the kernel with this dtype; "host" if ``card_dtypes`` lacks the dtype."""
    if dtype not in card_dtypes(kernel):
        return "host"
    wide = dtype in ("float64", "complex128")
    return "aicpu" if wide or dtype in _table("aicpu_kernels").get(kernel, ()) else "npu"


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
    return json.loads((PACKAGE_FOLDER.parent / "data" / f"{name}.json").read_text(encoding="utf-8"))


def _plugin() -> ctypes.CDLL:
    plugin = loaded_plugin()
    if plugin is None:
        raise RuntimeError(
            "There is no record of kernels: the virtual NPU is not loaded. Call "
            "paddle_fused.virtual_npu.activate() and then import paddle."
        )
    return plugin
