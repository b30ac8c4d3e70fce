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
    """``command_line.run`` with what this package adds: signals, a home folder, and errors of the ranks.

    ``explained`` adds what is known about an error that another library raised. After a signal that
    ``stopping`` handles, the process ends here, with the sentence about it.
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
    """Print the sentence of an error that is for the user, and return its exit code; raise any other error.

    Python checks for signals when it enters a function. So a signal that came while foreign code ran is
    answered before that code's complaint, which may be only that another rank is gone.
    """
    sentence = str(error)
    if isinstance(error, MemoryError):
        sentence = errors.out_of_memory(error)
    elif isinstance(error, RuntimeError) and "paddle" not in sys.modules:
        pass  # the device is unusable, and the sentence says why
    elif not errors.is_for_the_user(error):
        raise error  # a defect, which needs its traceback
    elif isinstance(error.__cause__, Exception):
        sentence = "\n".join(filter(None, [sentence, explained(error.__cause__)]))
    refusal.say(sentence)
    return command_line.BAD_INPUT
