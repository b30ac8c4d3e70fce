"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal): the one place that handles signals.

    listen("before the first step")    the first thing that a script does
    shield()                           from now on, such a signal ends the process at once
    unshield()                         from now on, such a signal raises ``Stopped``, so that ``finally`` runs
    subscribe(handler)                 from now on, such a signal calls ``handler``, until unsubscribed

The process prints one message and exits with 128 + the signal's number. A script that listens is shielded
until paddle is imported. Afterwards Python raises the exception between two bytecodes. A process in native
code (waiting for another rank, or training a tokenizer) is ended ``GRACE`` seconds later.
Subscribers are the trainer, which finishes its step first (``llm_npu.training.end_of_run``), and the
launcher, which forwards the signals to its ranks (``llm_npu.launch.supervisor``).

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
GRACE = 1.0  # seconds; llm_npu.launch.supervisor leaves three to the ranks
_WAKE = signal.SIGURG  # for the thread of ``shield`` only: nobody sends it, and it is ignored elsewhere

_moment = ""
_waiting: threading.Thread | None = None
_said = threading.Lock()


class Stopped(SystemExit):
    """Raised where the signal ``number`` finds the program; the exit code is 128 + ``number``."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number


def listen(moment: str) -> None:
    """Handle the signals from now on, naming ``moment`` in the exit message; shielded until ``unshield``.

    A signal that the process ignores stays ignored: a background job of a shell ignores Ctrl-C, and what
    nohup has started SIGHUP. Standard streams that are closed become /dev/null, so that no file gets their
    numbers.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (the lowest free number is the closed one)
    reached(moment)
    shield()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_end_if_unhandled, args=(reader,), daemon=True).start()
    for number in _answered():
        signal.signal(number, stop)


def subscribe(handler: Callable) -> Callable[[], None]:
    """Let ``handler(number, frame)`` handle the signals until the returned function is called."""
    wakeup = signal.set_wakeup_fd(-1)  # no grace period: the handler decides when the process ends
    before = {number: signal.signal(number, handler) for number in _answered()}

    def unsubscribe() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)

    return unsubscribe


def reached(moment: str) -> None:
    """Set the phase named in the exit message."""
    global _moment
    _moment = moment


def stop(number: int, frame) -> None:
    """The handler: raises ``Stopped``. Later signals belong to the same stop, and are ignored."""
    for handled in _answered():
        signal.signal(handled, _repeated)
    raise Stopped(number)


def end(number: int) -> None:
    """Print the exit message and end the process without exit functions: Paddle's threads may be running.

    A rank waits for the ranks that are in foreign code, which would report it as lost.
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
    with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
        sys.stdout.flush()
        sys.stderr.flush()
    name = signal.Signals(number).name
    print_now(f"stopped by {name}{_moment and ' '}{_moment}")


def print_now(message: str) -> None:
    """Print ``message`` from a signal handler, in which Python's own streams cannot be used."""
    with contextlib.suppress(OSError):
        os.write(1, f"{message}\n".encode())


def shield() -> None:
    """Make the signals end the process at once, bypassing all handlers.

    Importing Paddle installs a handler of SIGTERM that prints a C++ stack, and an exception in the middle of
    an import may be swallowed. So the signals are blocked in this thread and in all threads that start from
    now on, except for one that waits for them.
    """
    global _waiting
    if _waiting is None:
        held_back = {*_answered(), _WAKE}
        signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
        _waiting = threading.Thread(target=_end_when_signalled, args=(held_back,), daemon=True)
        _waiting.start()


def unshield() -> None:
    """Reinstall Python's handlers, whatever a library has put in their place, and let signals reach them.

    ``stop`` handles a signal without a handler.
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
    """Before ``exec``: block the signals until the new program listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def end_at_once(number: int, message: str) -> None:
    """Print ``message``, and end the process by the default action of the signal."""
    print_now(message)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _answered() -> list[signal.Signals]:
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _repeated(number: int, frame) -> None:
    """Ignored: the process is about to end."""


def _end_when_signalled(held_back: set[signal.Signals]) -> None:
    number = signal.sigwait(held_back)
    if number != _WAKE:
        end(number)


def _end_if_unhandled(reader: int) -> None:
    """End the process ``GRACE`` seconds after a signal that its main thread has not noticed.

    A main thread that has noticed it gets four times as long to clean up and to wait for other ranks.
    """
    while received := os.read(reader, 1):
        time.sleep(GRACE)
        number = received[0]
        if signal.getsignal(number) is _repeated:
            time.sleep(4 * GRACE)
        if number in SIGNALS and signal.getsignal(number) in (stop, _repeated):
            _say(number)
            os._exit(128 + number)
