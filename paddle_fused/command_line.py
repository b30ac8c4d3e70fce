"""Shared by all commands of this project: error prefix, exit codes, boolean words and spelling hints.

    sys.exit(command_line.run(main, sys.argv[1:]))

Bad input is reported as one line on stderr, ``error: SENTENCE``, with exit code 2. Importing this module
imports no framework.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import sys
from collections.abc import Callable, Iterable, Sequence

from . import streams
from .libraries import SetupError

BAD_INPUT, INTERRUPTED = 2, 130
# The last word of each tuple is YAML's.
TRUE, FALSE = ("yes", "true", "t", "y", "1", "on"), ("no", "false", "f", "n", "0", "off")


WORD, WHOLE = 0.65, 0.9  # minimum similarity of single words, and of names without underscores
LONGEST = 80  # characters of a name; the comparison is quadratic


class UserError(ValueError):
    """Bad input. The message states the value received, the accepted values and the fix.

    A command prints the message and exits with code 2. Any other ValueError is a defect and keeps its
    traceback.
    """


class Parser(argparse.ArgumentParser):
    """Raises UserError for bad arguments and rejects abbreviated flags."""

    def __init__(self, *args, **kwargs):
        # With abbreviations, a misspelled name could match another flag.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str):
        raise UserError(message.removeprefix("argument "))


def of_document(prog: str, document: str) -> Parser:
    """A parser whose ``--help`` shows the docstring ``document`` unchanged."""
    return Parser(prog=prog, description=document, formatter_class=argparse.RawDescriptionHelpFormatter)


def truth(word: str) -> bool:
    """Parses a boolean word. Raises ArgumentTypeError for any other word, as argparse expects."""
    if word.lower() in (*TRUE, *FALSE):
        return word.lower() in TRUE
    shown = repr(word) if len(word) <= 60 else f"{word[:60]!r}..."
    words = (*TRUE, *FALSE)
    raise argparse.ArgumentTypeError(f"{shown} is not {', '.join(words[:-1])} or {words[-1]}")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The closest match in ``known``, or None if nothing is close: no hint is better than a wrong hint.

    Names are close if every word of the shorter name is a misspelling of a word of the longer one:
    ``dataset_path`` is not close to ``model_path``. A partial name such as ``lora`` matches only if exactly
    one name contains it.
    """
    if len(name) > LONGEST:
        return None
    name = name.replace("-", "_")
    known = list(known)
    if name.removeprefix("no_") in known:
        return name.removeprefix("no_")
    likely = [candidate for candidate in known if _joined(name, candidate) or _same_words(name, candidate)]
    if likely:
        return max(likely, key=lambda candidate: difflib.SequenceMatcher(None, name, candidate).ratio())
    holding = [candidate for candidate in known if set(name.split("_")) <= set(candidate.split("_"))]
    return holding[0] if len(holding) == 1 else None


def _joined(name: str, known: str) -> bool:
    """Compares names without underscores: ``inputdir`` and ``input_dir`` are close."""
    left, right = name.replace("_", ""), known.replace("_", "")
    return difflib.SequenceMatcher(None, left, right).ratio() >= WHOLE


def _same_words(name: str, known: str) -> bool:
    """Compares names word by word: ``lerning_rate`` and ``learning_rate`` are close."""
    words, others = name.split("_"), known.split("_")
    return len(words) == len(others) and all(
        difflib.SequenceMatcher(None, *pair).ratio() >= WORD for pair in zip(words, others, strict=True)
    )


def is_for_the_user(error: BaseException) -> bool:
    """Whether ``error`` is a message for the user and not a defect."""
    return isinstance(error, (UserError, SetupError)) or (
        isinstance(error, OSError) and error.errno is not None
    )


def refuse(sentence: str) -> None:
    """Prints the reason for rejecting the input."""
    print(f"error: {sentence}", file=sys.stderr)


def run(main: Callable[[list[str]], int | None], argv: Sequence[str], output_is_result: bool = True) -> int:
    """Runs the command ``main(argv)`` and returns its exit code. Its streams survive a closed pipe.

    The exit code is 2 for bad input and 130 after Ctrl-C. With ``output_is_result``, it is 1 instead of 0 if
    output was lost for a reason other than a closed pipe, such as a full disk.
    """
    streams.outlive()
    if problem := streams.lost_folder():
        refuse(problem)
        return BAD_INPUT
    try:
        code = main(list(argv)) or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not is_for_the_user(error):
            raise
        refuse(str(error))
        return BAD_INPUT
    if sys.stdout is not None:
        sys.stdout.flush()
    lost = streams.lost()
    return code or int(output_is_result and lost is not None and lost.errno != errno.EPIPE)
