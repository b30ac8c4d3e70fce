"""Signal handling for Ctrl-C, SIGTERM and SIGHUP (a closed terminal).

    listen("before the first step")    install the handlers; the first call of a script
    shield()                           a signal terminates the process immediately
    unshield()                         a signal raises ``Stopped``, so ``finally`` blocks run
    subscribe(handler)                 a signal calls ``handler``, until unsubscribed

The process prints one message and exits with 128 + the signal's number. A script is shielded from ``listen``
until paddle is imported. After ``unshield``, Python raises ``Stopped`` between two bytecodes; a process
blocked in native code (a collective, or tokenizer training) is terminated after ``GRACE`` seconds.
Subscribers are the trainer, which finishes its step first (``llm_npu.training.end_of_run``), and the
launcher, which forwards signals to its ranks (``llm_npu.launch.supervisor``).

Importing this module imports no framework.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 1.0  # seconds; shorter than the grace period of llm_npu.launch.supervisor (three seconds)
_WAKE = signal.SIGURG  # used only by the thread of ``shield``; ignored elsewhere

_moment = ""
_waiting: threading.Thread | None = None
_message_printed = threading.Lock()


class Stopped(SystemExit):
    """Raised when signal ``number`` arrives; the exit code is 128 + ``number``."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number


def listen(moment: str) -> None:
    """Install the handlers, shielded until ``unshield``; the exit message names ``moment``.

    Signals that are already ignored stay ignored: background jobs of a shell ignore Ctrl-C, and nohup
    ignores SIGHUP. Closed standard streams are reopened on /dev/null, so that no other file gets their
    descriptors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (reuses the closed descriptor)
    reached(moment)
    shield()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_end_if_unhandled, args=(reader,), daemon=True).start()
    for number in _handled_signals():
        signal.signal(number, stop)


def subscribe(handler: Callable) -> Callable[[], None]:
    """Call ``handler(number, frame)`` on every signal. The returned function unsubscribes."""
    wakeup = signal.set_wakeup_fd(-1)  # no grace period: the handler decides when to exit
    before = {number: signal.signal(number, handler) for number in _handled_signals()}

    def unsubscribe() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)

    return unsubscribe


def reached(moment: str) -> None:
    """Set the phase that the exit message names."""
    global _moment
    _moment = moment


def stop(number: int, frame) -> None:
    """Signal handler that raises ``Stopped``. Later signals are ignored."""
    for handled in _handled_signals():
        signal.signal(handled, _repeated)
    raise Stopped(number)


def end(number: int) -> None:
    """Print the exit message and call ``os._exit``: exit handlers are unsafe while Paddle's threads run.

    A rank first gives the other ranks time to exit: those in native code would report it as lost.
    """
    _print_exit_message(number)
    if int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) > 1:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Paddle's threads report exited ranks on stderr
        time.sleep(2 * GRACE)
    os._exit(128 + number)


def _print_exit_message(number: int) -> None:
    """Print the exit message, once."""
    if not _message_printed.acquire(blocking=False):
        return
    with contextlib.suppress(OSError, ValueError):  # closed, or a pipe without a reader
        sys.stdout.flush()
        sys.stderr.flush()
    name = signal.Signals(number).name
    print_now(f"stopped by {name}{_moment and ' '}{_moment}")


def print_now(message: str) -> None:
    """Print ``message``. Safe in a signal handler, unlike Python's streams."""
    with contextlib.suppress(OSError):
        os.write(1, f"{message}\n".encode())


def shield() -> None:
    """Make the signals terminate the process immediately, bypassing all handlers.

    Importing Paddle installs a SIGTERM handler that prints a C++ stack trace, and an import may swallow
    exceptions. The signals are therefore blocked in this thread and in threads started later; one dedicated
    thread waits for them.
    """
    global _waiting
    if _waiting is None:
        blocked = {*_handled_signals(), _WAKE}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        _waiting = threading.Thread(target=_end_when_signalled, args=(blocked,), daemon=True)
        _waiting.start()


def unshield() -> None:
    """Reinstall Python's handlers over those of libraries (default: ``stop``), and unblock the signals."""
    global _waiting
    if _waiting is None:
        return
    for number in _handled_signals():
        handler = signal.getsignal(number)
        signal.signal(number, stop if handler is signal.SIG_DFL else handler)
    signal.pthread_kill(_waiting.ident, _WAKE)
    _waiting.join()
    _waiting = None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, _WAKE})


def hold_back() -> None:
    """Block the signals before ``exec``, until the new program calls ``listen``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def end_at_once(number: int, message: str) -> None:
    """Print ``message`` and terminate the process by the signal's default action."""
    print_now(message)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _handled_signals() -> list[signal.Signals]:
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _repeated(number: int, frame) -> None:
    """Ignore the signal: the process is about to exit."""


def _end_when_signalled(blocked: set[signal.Signals]) -> None:
    number = signal.sigwait(blocked)
    if number != _WAKE:
        end(number)


def _end_if_unhandled(reader: int) -> None:
    """Terminate the process if its main thread has not handled a signal after ``GRACE`` seconds.

    A main thread that has handled it gets another four times ``GRACE`` to clean up and wait for other ranks.
    """
    while received := os.read(reader, 1):
        time.sleep(GRACE)
        number = received[0]
        if signal.getsignal(number) is _repeated:
            time.sleep(4 * GRACE)
        if number in SIGNALS and signal.getsignal(number) in (stop, _repeated):
            _print_exit_message(number)
            os._exit(128 + number)
