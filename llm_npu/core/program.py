"""Runs a command: signals, bad input and exit codes. Importing this module imports no framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from llm_npu.core import errors, paths, refusal, stopping
from paddle_fused import command_line


def run(
    main: Callable[[list[str]], int],
    argv: Sequence[str],
    explained: Callable[[Exception], str] = lambda error: "",
    output_is_result: bool = True,
) -> int:
    """``command_line.run`` plus signal handling, a home folder, and errors of other ranks.

    ``explained`` adds known causes to an error raised by another library. After a signal that ``stopping``
    handles, the process exits here with the message for that signal.
    """

    def answered(argv: list[str]) -> int:
        paths.ensure_home()
        try:
            return main(argv)
        except Exception as error:
            return _refused(error, explained)

    try:
        return command_line.run(answered, argv, output_is_result)
    except stopping.Stopped as stopped:
        stopping.end(stopped.number)


def _refused(error: Exception, explained: Callable[[Exception], str]) -> int:
    """Print a user-facing error and return its exit code; re-raise any other error.

    Python checks for signals when it enters a function. A signal that arrived while foreign code ran is
    therefore handled before that code's error, which may only report the exit of another rank.
    """
    sentence = str(error)
    if isinstance(error, MemoryError):
        sentence = errors.out_of_memory(error)
    elif isinstance(error, RuntimeError) and "paddle" not in sys.modules:
        pass  # the device is unusable, and the message gives the reason
    elif not errors.is_for_the_user(error):
        raise error  # a bug; keep the traceback
    elif isinstance(error.__cause__, Exception):
        sentence = "\n".join(filter(None, [sentence, explained(error.__cause__)]))
    refusal.say(sentence)
    return command_line.BAD_INPUT
