"""What every command of this project shares: the prefix of errors, exit codes, boolean words and hints.

    sys.exit(command_line.run(main, sys.argv[1:]))

Bad input is one line on stderr, ``error: SENTENCE``, and exit code 2. Importing this module imports no
framework.
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
# The last word of each is YAML's.
TRUE, FALSE = ("yes", "true", "t", "y", "1", "on"), ("no", "false", "f", "n", "0", "off")


WORD, WHOLE = 0.65, 0.9  # least similarity of a word, and of names with their words run together
LONGEST = 80  # characters of a name; the comparison takes the product of both lengths


class UserError(ValueError):
    """Bad input. The message says what came, what is accepted, and what to do.

    A command prints it and exits with code 2. Any other ValueError is a defect and keeps its traceback.
    """


class Parser(argparse.ArgumentParser):
    """Raises UserError for bad arguments; accepts no abbreviated flags."""

    def __init__(self, *args, **kwargs):
        # An abbreviation would let a misspelt name pass for another flag.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str):
        raise UserError(message.removeprefix("argument "))


def of_document(prog: str, document: str) -> Parser:
    """A parser whose ``--help`` shows the docstring ``document`` as it is."""
    return Parser(prog=prog, description=document, formatter_class=argparse.RawDescriptionHelpFormatter)


def truth(word: str) -> bool:
    """The value of a boolean word. ArgumentTypeError for any other word, as argparse expects."""
    if word.lower() in (*TRUE, *FALSE):
        return word.lower() in TRUE
    shown = repr(word) if len(word) <= 60 else f"{word[:60]!r}..."
    words = (*TRUE, *FALSE)
    raise argparse.ArgumentTypeError(f"{shown} is not {', '.join(words[:-1])} or {words[-1]}")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The nearest of ``known``, or None: a wrong hint costs more time than none.

    Names are near if every word of the shorter one is a misspelt word of the other; ``dataset_path`` is not
    ``model_path``. A part of a name, such as ``lora``, is near only where it is part of a single one.
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
    """``inputdir`` and ``input_dir``."""
    left, right = name.replace("_", ""), known.replace("_", "")
    return difflib.SequenceMatcher(None, left, right).ratio() >= WHOLE


def _same_words(name: str, known: str) -> bool:
    """``lerning_rate`` and ``learning_rate``: as many words, each near its counterpart."""
    words, others = name.split("_"), known.split("_")
    return len(words) == len(others) and all(
        difflib.SequenceMatcher(None, *pair).ratio() >= WORD for pair in zip(words, others, strict=True)
    )


def is_for_the_user(error: BaseException) -> bool:
    """Whether the message of ``error`` is an answer to the user, and no defect."""
    return isinstance(error, (UserError, SetupError)) or (
        isinstance(error, OSError) and error.errno is not None
    )


def refuse(sentence: str) -> None:
    """Print why the input is refused."""
    print(f"error: {sentence}", file=sys.stderr)


def run(main: Callable[[list[str]], int | None], argv: Sequence[str], output_is_result: bool = True) -> int:
    """The exit code of the command ``main(argv)``, whose streams outlive their readers.

    2 for bad input; 130 after Ctrl-C; with ``output_is_result`` 1 instead of 0 if output was lost for another
    reason than a closed pipe, such as a full disk.
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
