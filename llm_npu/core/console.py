"""What the terminal shows of a run: a calm screen. Importing it imports no framework.

On a terminal there is one progress bar with the last step's figures, and a line for every evaluation and
checkpoint; elsewhere (a file, a CI log) there is a line every ``logging_steps`` instead of the bar.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from llm_npu.core import errors, refusal, stopping

SCREEN = Console(highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """Print one line, as it is."""
    SCREEN.print(text, markup=False)


def import_frameworks() -> None:
    """Import paddle and paddlenlp without their start-up messages, and use all the cores this process has.

    Several processes of one machine share its cores.
    Paddle answers SIGTERM with a C++ stack trace; here it ends the program with a sentence (``stopping``).
    Paddle sets OMP_NUM_THREADS=1 when it is unset, and warns on stderr about any other value. What the user
    has set in the environment (OMP_NUM_THREADS, GLOG_minloglevel) stays. UserError for what Paddle says of
    an installation that cannot work.
    """
    sharing = int(os.environ.get("PADDLE_LOCAL_SIZE") or 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // sharing)))
    os.environ.setdefault("GLOG_minloglevel", "2")
    # ccache, setuptools and deprecated names that PaddleNLP uses: nothing that the reader could act on.
    for category in (UserWarning, DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=r"(paddle|paddlenlp|_distutils_hack)\b")
    stopping.shield()
    silent = contextlib.redirect_stderr(io.StringIO())
    with errors.caused_by_the_user(), silent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddlenlp.transformers  # noqa: F401  (imports paddle)
    from paddlenlp.utils.log import logger

    logger.set_level("ERROR")
    stopping.unshield()


class Display:
    """Shows a ``metrics.Recorder``'s records as they come; ``bar=False`` for no bar."""

    def __init__(self, bar: bool = True):
        self._progress = None
        if bar and SCREEN.is_terminal:
            self._progress = Progress(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=SCREEN,
            )

    def start(self, max_steps: int, logging_steps: int) -> None:
        """The training begins."""
        self._max_steps, self._logging_steps = max_steps, logging_steps
        if self._progress:
            self._task = self._progress.add_task("", total=max_steps)
            self._progress.start()

    def stop(self) -> None:
        """The training ends."""
        if self._progress:
            self._progress.stop()

    def show(self, record: dict) -> None:
        """One record of a step, an evaluation or a checkpoint."""
        step = record["step"]
        if "eval_loss" in record:
            say(f"step {step}: evaluation loss {record['eval_loss']:.4f}")
        elif "checkpoint_s" in record:
            say(f"step {step}: checkpoint written")
        elif self._progress:
            self._progress.update(self._task, completed=step, description=_figures(record))
        elif step % self._logging_steps == 0 or step in (1, self._max_steps):
            say(f"step {step}/{self._max_steps}: {_figures(record)}")


def _figures(record: dict) -> str:
    """The columns of a step's line; those that a run does not have are left out of all its lines."""
    step_s = record["step_s"]
    columns = [
        f"loss {record['loss']:.4f}",
        f"lr {record['learning_rate']:.2e}",
        f"norm {record['grad_norm']:.2f}" if "grad_norm" in record else "",
        f"{record['tokens_per_s']:,.0f} tokens/s",
        f"MFU {record['mfu']:.1%}" if "mfu" in record else "",
        f"data {record['data_s'] / step_s:.0%}",
        f"comm {record['exposed_s'] / step_s:.0%}" if "exposed_s" in record else "",
        mib(record["peak_memory"]),
    ]
    return "  ".join(filter(None, columns))


def mib(size: int) -> str:
    """Bytes -> "123 MiB"."""
    return f"{size / 2**20:,.0f} MiB"


def run(
    main: Callable[[list[str]], int],
    argv: list[str],
    explained: Callable[[Exception], str] = lambda error: "",
) -> int:
    """The exit code of ``main(argv)``; bad input becomes one sentence on stderr and exit code 2.

    ``explained`` says what is known of the error behind it, if another program has worded it.
    After a signal for which ``stopping`` listens the process ends here, with its sentence.
    """
    try:
        try:
            return main(argv)
        except Exception as error:
            return _refused(error, explained)
    except stopping.Stopped as stopped:
        stopping.end(stopped.number)
    except KeyboardInterrupt:
        return 130


def _refused(error: Exception, explained: Callable[[Exception], str]) -> int:
    """The exit code for an error that has a sentence for the user, which is printed; others are raised.

    Python looks for signals at the start of a function: one that came while foreign code ran is answered
    before what that code complains of, be it only that another rank is gone.
    """
    sentence = str(error)
    if isinstance(error, MemoryError):  # Paddle's, with the C++ stack around the sentence
        found = re.search(r"Out of memory.*", sentence)
        sentence = (
            f"{found[0] if found else 'Out of memory.'} "
            "Lower --per_device_train_batch_size or --max_seq_length, or add --recompute."
        )
    elif isinstance(error, RuntimeError) and "paddle" not in sys.modules:
        pass  # the device cannot be used, and the sentence says why
    elif not errors.is_for_the_user(error):
        raise error  # a fault of the program or of Paddle: the traceback is needed
    elif isinstance(error.__cause__, Exception):
        sentence = "\n".join(filter(None, [sentence, explained(error.__cause__)]))
    refusal.say(sentence)
    return 2
