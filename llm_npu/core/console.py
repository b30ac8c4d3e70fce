"""The terminal output of a run. Importing this module imports no framework.

A terminal gets one progress bar with the figures of the last step, and a line for every evaluation and
checkpoint. A file or a CI log gets a line every ``logging_steps`` instead of the bar.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from llm_npu.core import errors, stopping
from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from paddle_fused import streams

SCREEN = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


class _Verbatim:
    """A line that rich writes as it is: rich's own text has no tabs, and no control characters."""

    def __init__(self, text: str):
        self._text = text

    def __rich_console__(self, console, options) -> Iterator[Segment]:
        yield Segment(f"{self._text}\n")


def say(text: str = "") -> None:
    """Print one line verbatim, above the progress bar; a terminal gets what is not printable as escapes."""
    SCREEN.print(_Verbatim(printable(text, keep=LAYOUT) if SCREEN.is_terminal else text))


def import_frameworks(library: str) -> None:
    """Import paddle and ``library``, paddlenlp or paddleformers, without their start-up messages.

    All cores of this process are used; the ranks of a machine share its cores. Paddle answers SIGTERM with a
    C++ stack trace; here it ends the program with a sentence (``stopping``). Paddle sets an unset
    OMP_NUM_THREADS to 1, and warns on stderr about any other value. OMP_NUM_THREADS and GLOG_minloglevel stay
    as the user has set them. UserError if Paddle says that the installation cannot work.
    """
    sharing = int(os.environ.get("PADDLE_LOCAL_SIZE") or 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // sharing)))
    os.environ.setdefault("GLOG_minloglevel", "2")
    # About ccache, setuptools and deprecated names in the library: nothing that the reader could act on.
    for category in (UserWarning, DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=rf"(paddle|{library}|_distutils_hack)\b")
    stopping.shield()
    silent = contextlib.redirect_stderr(io.StringIO())
    with errors.caused_by_the_user(), silent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{library}.trainer.trainer")  # imports paddle
    importlib.import_module(f"{library}.utils.log").logger.set_level("ERROR")
    stopping.unshield()


class Display:
    """Shows the records of a ``metrics.Recorder`` as they come; ``bar=False`` for no progress bar."""

    def __init__(self, bar: bool = True):
        self._progress, self._reported = None, False
        if bar and SCREEN.is_terminal:
            self._progress = Progress(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
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
        """Show the record of a step, an evaluation or a checkpoint."""
        step = record["step"]
        if "eval_loss" in record:
            say(f"step {step}: evaluation loss {record['eval_loss']:.4f}")
        elif "checkpoint_s" in record:
            say(f"step {step}: checkpoint written")
        elif self._progress:
            self._progress.update(self._task, completed=step, description=_figures(record))
        elif step % self._logging_steps == 0 or step in (1, self._max_steps):
            say(f"step {step}/{self._max_steps}: {_figures(record)}")
        if streams.lost() and not self._reported:
            self._reported = True
            print("note     stdout has no reader; the run goes on (see metrics.jsonl)", file=sys.stderr)


def _figures(record: dict) -> str:
    """The columns of a step's line, without those that the run does not measure."""
    step_s = record["step_s"]
    columns = [
        f"loss {record['loss']:.4f}",
        f"margin {record['rewards/margins']:.3f}" if "rewards/margins" in record else "",
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
