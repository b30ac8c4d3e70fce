"""Raises AclError at the first aclnn call that CANN rejects.

    watch = paddle_fused.watch_acl_errors()
    train()

paddle-custom-npu ignores the return codes of aclnn, so a rejected call raises nothing and leaves its output
uninitialized. CANN keeps the reason as the error message of the calling thread (``aclGetRecentErrMsg``). The
message does not name the operator. The watch reads it after each operator, so its error does.

- Kernels run asynchronously on a card, but aclnn checks its arguments synchronously, on the calling thread.
  The watch reads the message after each operator that Python calls, and before each gradient of its outputs.
- The watch covers only the thread that started it. By default, captured programs (``to_static``) run their
  kernels on threads of Paddle's executor, and other threads cannot read those threads' messages. The watch
  sets ``FLAGS_enable_pir_in_executor_trace_run``: programs that run for the first time afterwards use the
  calling thread. Their error names the program, ``run_program``. After ``paddle.static.Executor.run``, call
  ``check()``.
- Other messages (a warning, a fault event of the device, an allocation that Paddle retries) are reported and
  do not stop the program.

Without CANN or the virtual NPU, the watch does nothing.

Source: op_log.h of CANN's opbase (codes); acl.cpp of hicann/runtime (aclGetRecentErrMsg).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
import warnings
from collections.abc import Callable

import paddle

from .operator_hooks import OperatorHooks, tensors

LIBRARIES = ("libpaddle-custom-npu.so", "libascendcl.so")  # the plugin links the second one
# CANN's codes for rejected operators, with their error numbers and meaning.
FAMILIES = {
    "EZ1001": ("161xxx", "invalid argument: dtype, shape, format or value"),
    "EZ9903": ("361xxx", "a runtime call failed inside the operator"),
    "EZ9999": ("561xxx", "internal error of the operator, such as failed tiling or a missing kernel"),
}
_CODE = re.compile(r"\b(EZ\d{4})\b|errno\[([135])61\d{3}\]")
_NAME = re.compile(r"OpName:\[(\w+?)(?:_\d+)?\]")
_OF_NUMBER = dict(zip("135", FAMILIES, strict=True))
PASSES = "an operator of the forward or backward pass"
FIRST_GRADIENT = "full"  # a backward pass begins with a gradient of ones
ON_CALLING_THREAD = "FLAGS_enable_pir_in_executor_trace_run"
LOG = "ASCEND_SLOG_PRINT_TO_STDOUT=1 ASCEND_GLOBAL_LOG_LEVEL=3"


class AclError(RuntimeError):
    """CANN rejected an operator, and its output is uninitialized.

    Attributes:
        operator: operator name, such as ``matmul``. In the backward pass, ``matmul_grad`` covers the operator
            and the gradient sums after it. Without a name, a description such as "an operator of the step".
        message: CANN's error message.
        cause: meaning of CANN's error number.
    """

    # Empty in the copy that Paddle creates from the message when a captured program runs.
    operator: str = ""
    message: str = ""
    cause: str = ""

    @classmethod
    def of(cls, operator: str, message: str) -> AclError:
        code = _CODE.search(message)
        code = code[1] or _OF_NUMBER[code[2]]
        number, meaning = FAMILIES.get(code, ("", "an error of an operator"))
        cause = f"{code} ({number}): {meaning}" if number else f"{code}: {meaning}"
        error = cls(
            f"CANN refused {operator}; its output is uninitialized ({cause}). Fix the call's arguments, or "
            f"see CANN's log with {LOG}. CANN's message: {' '.join(message.split())}"
        )
        error.operator, error.message, error.cause = operator, message, cause
        return error


def is_refusal(message: str) -> bool:
    """Whether CANN's message reports a failed operator, as opposed to a warning or an unrelated error."""
    return _CODE.search(message) is not None


def recent_message() -> str:
    """The calling thread's error message, or "". Reading clears it."""
    read = _function()
    message = read and read()
    return message.decode(errors="replace").strip() if message else ""


@functools.cache
def _function():
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:  # RTLD_NOLOAD: not loaded in this process
            continue
        if hasattr(library, "aclGetRecentErrMsg"):
            function = library.aclGetRecentErrMsg
            function.restype, function.argtypes = ctypes.c_char_p, ()
            return function
    return None


def watch_acl_errors(report: Callable[[str], None] = warnings.warn) -> AclErrorWatch:
    """Raises AclError from now on when CANN rejects an operator; see the module for the limits.

    Args:
        report: called with messages that are not errors, such as one left from before the watch.

    Returns:
        The watch, a context manager. ``stop()`` ends it, ``check()`` reads the message now.
    """
    return AclErrorWatch(report)


class AclErrorWatch:
    """See ``watch_acl_errors``.

    Attributes:
        error: the AclError that was raised, even if Paddle replaced it with another exception.
    """

    def __init__(self, report: Callable[[str], None]):
        self.error: AclError | None = None
        self._report = report
        self._thread = threading.get_ident()
        self._in_backward = False
        self._pending: AclError | None = None  # raised after the backward pass
        self._reached = ""  # the operator whose gradient is being computed
        self._hooks, self._is_hooked = OperatorHooks(self._after), False
        self._eager = paddle.base.core.eager
        self._replaced: dict[str, Callable] = {}
        self._flags: dict[str, bool] = {}
        if _function() is None:
            return
        if message := recent_message():
            report(f"CANN's error message from before the watch: {' '.join(message.split())}")
        self._flags = paddle.get_flags([ON_CALLING_THREAD])
        paddle.set_flags({ON_CALLING_THREAD: True})
        self.watch_operators(True)
        for name in ("run_backward", "run_partial_grad"):
            self._replaced[name] = getattr(self._eager, name)
            setattr(self._eager, name, self._backward(self._replaced[name]))

    def __enter__(self) -> AclErrorWatch:
        return self

    def __exit__(self, *error) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops watching."""
        self.watch_operators(False)
        paddle.set_flags(self._flags)
        while self._replaced:
            setattr(self._eager, *self._replaced.popitem())

    def watch_operators(self, on: bool) -> None:
        """Turns the reading after each operator, which costs some microseconds, on or off.

        When it is off, only the ends of backward passes are checked, and errors do not name the operator.
        """
        if on == self._is_hooked or _function() is None:
            return
        self._is_hooked = on
        (self._hooks.__enter__ if on else self._hooks.__exit__)()

    def check(self, operator: str = "an operator of the step") -> None:
        """Reads the message now, at the end of a step. ``operator`` is the name used in the error."""
        if self._replaced:
            self._read(operator)

    def _after(self, kernel: str, arguments: tuple, result: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self._read(kernel)
        for output in tensors((result,)):
            if not output.stop_gradient and not output.is_leaf:
                output.register_hook(functools.partial(self._reach, kernel))

    def _reach(self, kernel: str, gradient: paddle.Tensor) -> None:
        """Called in the backward pass, before the gradient of ``kernel`` is computed."""
        if self._in_backward and threading.get_ident() == self._thread:
            self._read(self._gradient_name())
            self._reached = kernel

    def _gradient_name(self) -> str:
        if not self._is_hooked:
            return PASSES
        return f"{self._reached}_grad" if self._reached else FIRST_GRADIENT

    def _backward(self, run: Callable) -> Callable:
        @functools.wraps(run)
        def watched(*args, **kwargs):
            if threading.get_ident() != self._thread or self._in_backward:
                return run(*args, **kwargs)
            self._in_backward, self._reached, self._pending = True, "", None
            try:
                result = run(*args, **kwargs)
                self._read(self._gradient_name())
            finally:
                self._in_backward = False
            if self._pending is not None:
                self.error = self._pending
                raise self.error
            return result

        return watched

    def _read(self, operator: str) -> None:
        message = recent_message()
        if not message:
            return
        if not is_refusal(message):
            self._report(f"CANN's message after {operator}: {' '.join(message.split())}")
            return
        name = _NAME.search(message)
        error = AclError.of(name[1] if name else operator, message)
        if self._in_backward:  # Paddle would drop the exception
            self._pending = self._pending or error
            return
        self.error = error
        raise error
