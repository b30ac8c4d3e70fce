"""Reports kernels that a card would not run on its cores, while they run on the virtual NPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple, Protocol

from .record import NARROWER, Placement, card_dtypes, plugin
from .source_lines import program_of_frame


class HostFallback(NamedTuple):
    """A call of a kernel that a card would not run on its cores.

    Attributes:
        dtype: dtype of the tensor that causes the fallback: the largest float64 (complex128) argument,
            otherwise the largest argument with the kernel's dtype.
        shape: shape of this tensor, or None without a tensor.
        is_source: the kernel creates the float64 tensor from other dtypes.
        count: number of equal calls.
    """

    kernel: str
    placement: Placement
    dtype: str
    shape: tuple[int, ...] | None
    is_source: bool
    count: int = 1

    @property
    def fix(self) -> str:
        """The fix, as part of a sentence."""
        if narrow := NARROWER.get(self.dtype):
            if self.is_source:
                return f"this line creates the float64: pass dtype='{narrow}', or cast NumPy inputs first"
            return f"the float64 is created elsewhere: cast it to {narrow} there"
        registered = ", ".join(card_dtypes(self.kernel))
        if self.placement == "aicpu":
            return f"cast {self.dtype} to float32 before this operator"
        if not registered:
            return "paddle-custom-npu does not have this kernel: use another operator"
        return f"paddle-custom-npu has this kernel only for {registered}: cast to one of them"


@contextlib.contextmanager
def watch_host_fallbacks(observer: Callable[[HostFallback], bool]) -> Iterator[None]:
    """Calls ``observer`` in the block for every kernel that a card would not run on its cores.

    ``observer`` runs before the kernel, on the thread that calls it. It must not use Paddle, but may inspect
    the Python stack. If it returns True, the kernel is refused and Paddle raises NotImplementedError. An
    exception from the observer also refuses the kernel and replaces Paddle's exception. On a thread without
    Python, the exception is raised at the end of the block. With nested watches, only the innermost is
    called. Raises RuntimeError if the plugin is not loaded.
    """
    watching = _Watching(observer)
    listed = weakref.ref(watching)  # a watch that never ends disappears with its last reference
    _watches.append(listed)
    _observe()
    try:
        yield
    finally:
        _watches.remove(listed)
        _observe()
    if watching.raised:
        raise watching.raised[0]


class Warner(Protocol):
    """The interface for ``warn_of_fallbacks``. ``site`` identifies a kernel, its placement and the dtype."""

    def is_known(self, site: int, frame: FrameType | None) -> bool:
        """Whether a call from this frame only needs to be counted. This function then counts it."""

    def warn(self, fallback: HostFallback, frame: FrameType | None, site: int) -> None:
        """Warns about the call, or raises an exception."""


def warn_of_fallbacks(warner: Warner | None, every: bool = False) -> None:
    """Outside watches, calls ``warner`` for kernels with a float64 tensor, or for ``every`` fallback.

    An exception from ``warner`` refuses the kernel and is raised in the frame that called the kernel. Kernels
    of threads without Python are reported on the main thread shortly afterwards, and exceptions are raised
    there. ``None`` stops the reports.
    """
    global _warner, _warned_reports
    if warner is None and _warner is None:
        return
    _warner, _warned_reports = warner, _EVERY_FALLBACK if every else _DOUBLE_PRECISION
    _observe()


def raise_refusal() -> None:
    """Called by the plugin: raises the warner's exception about a kernel of another thread."""
    if _refusals:
        error = _refusals[0]
        _refusals.clear()
        raise error


class _Watching:
    """A watch and the exceptions of its observer."""

    def __init__(self, observer: Callable[[HostFallback], bool]):
        self.observer = observer
        self.raised: list[BaseException] = []

    def rejects(self, fallback: HostFallback, caller: FrameType | None) -> bool:
        try:
            return self.observer(fallback)
        except BaseException as error:
            if not _raise_in(caller, error):
                self.raised.append(error)
            return True


_watches: list[weakref.ref[_Watching]] = []
_warner: Warner | None = None
_warned_reports = 0
_refusals: list[BaseException] = []
# FallbackReports in virtual_npu/csrc/observe/host_fallback.h.
_DOUBLE_PRECISION, _EVERY_FALLBACK, _ON_ANY_THREAD = 1, 2, 4


class _Call(ctypes.Structure):
    """``Call`` in virtual_npu/csrc/observe/host_fallback.cc."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("placement", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int),
        ("introduces_double", ctypes.c_int),
        ("queued", ctypes.c_int),
        ("count", ctypes.c_uint64),
    )


@functools.cache
def _callback():
    """The function that the plugin calls. It stays referenced, because the plugin may call it at any time."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)

    def report(site, address) -> int:
        caller = sys._getframe().f_back
        watching = _watches[-1]() if _watches else None
        if watching is None and (_warner is None or (site and _warner.is_known(site, caller))):
            return 0
        call = _Call.from_address(address)
        if watching is not None:
            return int(watching.rejects(_fallback(call), caller))
        if call.queued:
            caller = _frame_that_runs_a_program()
        return int(_warning_rejects(_fallback(call), caller, site, bool(call.queued)))

    return kind(report)


def _fallback(call: _Call) -> HostFallback:
    return HostFallback(
        call.kernel.decode(),
        call.placement.decode(),
        call.dtype.decode(),
        tuple(call.dims[: call.rank]) if call.rank >= 0 else None,
        bool(call.introduces_double),
        call.count,
    )


def _frame_that_runs_a_program() -> FrameType | None:
    """The frame of a thread that waits for a captured program, otherwise the main thread's frame."""
    threads = sys._current_frames()
    main = threads.pop(threading.main_thread().ident, None)
    return next((frame for frame in (main, *threads.values()) if program_of_frame(frame) is not None), main)


def _warning_rejects(fallback: HostFallback, caller: FrameType | None, site: int, queued: bool) -> bool:
    try:
        _warner.warn(fallback, caller, site)
    except BaseException as error:
        if queued:
            _refusals.append(error)
        else:
            _raise_in(caller, error)
        return True
    return False


def _raise_in(frame: FrameType | None, error: BaseException) -> bool:
    """Raises ``error`` in ``frame`` in place of the exception that Paddle creates for a refused kernel.

    Paddle raises only a few built-in exception classes, but a trace function can replace the exception of a
    frame that it traces. Returns False while a debugger traces the thread.
    """
    if frame is None or sys.gettrace() is not None:
        return False

    def surface(_, event, value):
        if event == "call":
            return None
        sys.settrace(None)
        raise error.with_traceback(value[2] if event == "exception" else None)

    frame.f_trace = surface
    sys.settrace(surface)
    return True


def _observe() -> None:
    """Configures which kernels the plugin reports."""
    reports = _EVERY_FALLBACK | _ON_ANY_THREAD if _watches else _warned_reports if _warner else 0
    function = plugin().virtual_npu_observe_fallbacks
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], None
    function(ctypes.cast(_callback(), ctypes.c_void_p), reports)
