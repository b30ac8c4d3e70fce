"""Handles Ctrl-C, SIGTERM and SIGHUP (a closed terminal).

    listen("before the first step")    call this first in a script
    shield()                           from now on, a signal ends the process at once
    unshield()                         from now on, a signal raises ``Stopped``, so that ``finally`` runs
    subscribe(handler)                 from now on, a signal calls ``handler``, until unsubscribed

The process prints one message and exits with 128 + the signal's number. A script that listens is shielded
until paddle is imported. Afterwards Python raises the exception between two bytecodes. A process in native
code (waiting for another rank, or training a tokenizer) is terminated ``GRACE`` seconds later.
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
GRACE = 1.0  # seconds; llm_npu.launch.supervisor gives the ranks three
_WAKE = signal.SIGURG  # used only by the thread of ``shield``; ignored elsewhere

_moment = ""
_waiting: threading.Thread | None = None
_said = threading.Lock()


class Stopped(SystemExit):
    """Raised when signal ``number`` arrives; the exit code is 128 + ``number``."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number


def listen(moment: str) -> None:
    """Start handling the signals; the exit message names ``moment``. Shielded until ``unshield``.

    A signal that the process ignores stays ignored: a shell's background job ignores Ctrl-C, and nohup
    ignores SIGHUP. Closed standard streams are opened on /dev/null, so that no other file gets their
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
    for number in _answered():
        signal.signal(number, stop)


def subscribe(handler: Callable) -> Callable[[], None]:
    """Call ``handler(number, frame)`` for the signals until the returned function is called."""
    wakeup = signal.set_wakeup_fd(-1)  # no grace period: the handler decides when the process ends
    before = {number: signal.signal(number, handler) for number in _answered()}

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
    for handled in _answered():
        signal.signal(handled, _repeated)
    raise Stopped(number)


def end(number: int) -> None:
    """Print the exit message and exit without running exit functions: Paddle's threads may be running.

    A rank waits for ranks in foreign code, which would report it as lost.
    """
    _say(number)
    if int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) > 1:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its threads report the other ranks as lost
        time.sleep(2 * GRACE)
    os._exit(128 + number)


def _say(number: int) -> None:
    """Print the exit message, once."""
    if not _said.acquire(blocking=False):
        return
    with contextlib.suppress(OSError, ValueError):  # closed, or a pipe without a reader
        sys.stdout.flush()
        sys.stderr.flush()
    name = signal.Signals(number).name
    print_now(f"stopped by {name}{_moment and ' '}{_moment}")


def print_now(message: str) -> None:
    """Print ``message`` from a signal handler, where Python's own streams are unsafe."""
    with contextlib.suppress(OSError):
        os.write(1, f"{message}\n".encode())


def shield() -> None:
    """Make the signals end the process at once, bypassing all handlers.

    Importing Paddle installs a SIGTERM handler that prints a C++ stack, and an exception in the middle of an
    import may be swallowed. The signals are therefore blocked in this thread and in all threads started
    later, except for one thread that waits for them.
    """
    global _waiting
    if _waiting is None:
        held_back = {*_answered(), _WAKE}
        signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
        _waiting = threading.Thread(target=_end_when_signalled, args=(held_back,), daemon=True)
        _waiting.start()


def unshield() -> None:
    """Reinstall Python's handlers, replacing any installed by a library, and unblock the signals.

    A signal without a handler gets ``stop``.
    """
    global _waiting
    if _waiting is None:
        return
    for number in _answered():
        handler = signal.getsignal(number)
        signal.signal(number, stop if handler is signal.SIG_DFL else handler)
    signal.pthread_kill(_waiting.ident, _WAKE)
    _waiting.join()
    _waiting = None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, _WAKE})


def hold_back() -> None:
    """Block the signals before ``exec``, until the new program listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def end_at_once(number: int, message: str) -> None:
    """Print ``message`` and end the process with the signal's default action."""
    print_now(message)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _answered() -> list[signal.Signals]:
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _repeated(number: int, frame) -> None:
    """Ignore the signal: the process is about to exit."""


def _end_when_signalled(held_back: set[signal.Signals]) -> None:
    number = signal.sigwait(held_back)
    if number != _WAKE:
        end(number)


def _end_if_unhandled(reader: int) -> None:
    """End the process ``GRACE`` seconds after a signal that its main thread has not handled.

    A main thread that has handled it gets four times as long to clean up and to wait for other ranks.
    """
    while received := os.read(reader, 1):
        time.sleep(GRACE)
        number = received[0]
        if signal.getsignal(number) is _repeated:
            time.sleep(4 * GRACE)
        if number in SIGNALS and signal.getsignal(number) in (stop, _repeated):
            _say(number)
            os._exit(128 + number)
