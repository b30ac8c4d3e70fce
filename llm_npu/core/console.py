"""The terminal output of a run. Importing this module imports no framework.

A terminal gets one progress bar with the metrics of the last step, and a line for every evaluation and
checkpoint. A file or CI log gets a line every ``logging_steps`` steps instead of the bar.
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
    """A line that rich prints verbatim; rich's own Text strips tabs and control characters."""

    def __init__(self, text: str):
        self._text = text

    def __rich_console__(self, console, options) -> Iterator[Segment]:
        yield Segment(f"{self._text}\n")


def say(text: str = "") -> None:
    """Print one line above the progress bar; on a terminal, unprintable characters are escaped."""
    SCREEN.print(_Verbatim(printable(text, keep=LAYOUT) if SCREEN.is_terminal else text))


def import_frameworks(library: str) -> None:
    """Import paddle and ``library`` (paddlenlp or paddleformers) without their start-up messages.

    This process uses all cores; the ranks of a machine share its cores. Paddle handles SIGTERM with a C++
    stack trace; here the program exits with a message (``stopping``). Paddle sets OMP_NUM_THREADS to 1 if it
    is unset, and warns on stderr about any other value. The user's OMP_NUM_THREADS and GLOG_minloglevel are
    restored. Raises UserError if Paddle reports that the installation cannot work.
    """
    sharing = int(os.environ.get("PADDLE_LOCAL_SIZE") or 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // sharing)))
    os.environ.setdefault("GLOG_minloglevel", "2")
    # Warnings about ccache, setuptools and deprecated names in the library; users cannot act on them.
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
    """Displays the records of a ``metrics.Recorder``; ``bar=False`` disables the progress bar."""

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
        """Called when training begins."""
        self._max_steps, self._logging_steps = max_steps, logging_steps
        if self._progress:
            self._task = self._progress.add_task("", total=max_steps)
            self._progress.start()

    def stop(self) -> None:
        """Called when training ends."""
        if self._progress:
            self._progress.stop()

    def show(self, record: dict) -> None:
        """Display the record of a step, an evaluation or a checkpoint."""
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
            print("note     stdout was closed; training continues (see metrics.jsonl)", file=sys.stderr)


def _figures(record: dict) -> str:
    """The metrics in a step's line; metrics that the run does not measure are omitted."""
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
