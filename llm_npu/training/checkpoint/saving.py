"""A checkpoint on its way to the disk: whole tensors, of which each process writes its parts.

    1  the processes agree who writes which part: every part once, shared out evenly
    2  the first process makes the hidden folder, the files with their sizes, and the small files
    3  every process writes its parts, and flushes them
    4  every process computes the checksums of some of the files
    5  the first process marks the folder complete and renames it

Between the steps the processes wait for each other; what fails on one fails on all, and the folder goes.
Steps 3 and 4 can run behind the training: the parts are copied to the host's memory first, and the processes
ask each other after every training step whether all are done. Writing threads never communicate: collectives
of two threads have no order that all processes agree on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llm_npu.core.ranks import ALONE, Ranks, described, raise_first
from llm_npu.core.tensor_file import Writer, create, naming
from llm_npu.training.checkpoint import folder as folders
from llm_npu.training.checkpoint.plan import Plan, index_of
from llm_npu.training.checkpoint.tensors import Held

# {name of a file: what writes it into a folder}
Files = Mapping[str, Callable[[Path], None]]


class Saved(NamedTuple):
    """A checkpoint that is complete: how long it took, and how long the training waited for it."""

    step: int
    seconds: float
    stall: float


def _prepare(folder: Path, plan: Plan, kinds: Iterable[str], files: Files) -> None:
    """Step 2, on the first process."""
    for file, tensors in plan.files.items():
        create(folder / file, tensors)
    for kind in kinds:
        of_kind = {file: plan.files[file] for file in plan.files if file.startswith(f"{kind}-")}
        if of_kind:
            index = folder / f"{kind}.safetensors.index.json"
            with naming(index):
                index.write_text(index_of(of_kind))
    _write_files(folder, files)


def _write_files(folder: Path, files: Files) -> None:
    for name, write in files.items():
        with naming(folder / name):
            write(folder)


def _write(folder: Path, content: Iterable[tuple[str, object, np.ndarray]], own_files: Files) -> list[str]:
    """Step 3; the names of the files that this process has written to."""
    writers: dict[str, Writer] = {}
    with ExitStack() as stack:
        for file, block, values in content:
            if file not in writers:
                writers[file] = Writer(folder / file)
                stack.callback(writers[file].close)
            writers[file].write(block.name, block.offset, values)
    _write_files(folder, own_files)
    return [*writers, *own_files]


def export(folder: Path, held: Sequence[Held], files: Files, ranks: Ranks) -> None:
    """Write the model that ``ranks`` hold together, with the small ``files``; ``folder`` appears whole.

    It is what the weights of a checkpoint are, without the rest. Each must call it.
    """
    from llm_npu.core.atomic import replace, unfinished

    plan = Plan.of({"model": held}, ranks)
    with ExitStack() as stack:
        new = None
        with ranks.together():
            if ranks.first:
                new = stack.enter_context(unfinished(folder))
                _prepare(new, plan, ["model"], files)
        new = Path(ranks.from_first(str(new)))
        with ranks.together():
            _write(new, plan.content(), {})
        with ranks.together():
            if ranks.first:
                replace(new, folder)


class _Inline(futures.Executor):
    """Runs what is submitted at once."""

    def submit(self, function, /, *arguments):
        future: futures.Future = futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass
class _Current:
    """The checkpoint that is being written."""

    step: int
    folder: Path
    started: float
    future: futures.Future
    stall: float = 0.0
    written: bool = False
    hold: ExitStack = field(default_factory=ExitStack)  # the hidden folder, on the first process


class Checkpoints:
    """Writes the checkpoints of a run into ``output_dir``, and keeps the newest ``keep``.

    ``behind``: the writing runs in a thread, with ``poll`` after every step of the training and ``finish`` at
    its end; at most one checkpoint is on its way. Every process of ``ranks`` makes the same calls.
    """

    def __init__(
        self, output_dir: str | Path, ranks: Ranks = ALONE, keep: int | None = None, behind: bool = False
    ):
        self._output_dir, self._ranks, self._keep, self._behind = Path(output_dir), ranks, keep, behind
        self._executor = (
            futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if behind else _Inline()
        )
        self._current: _Current | None = None

    def save(
        self,
        step: int,
        held: Mapping[str, Sequence[Held]],
        files: Files | None = None,
        own_files: Files | None = None,
    ) -> list[Saved]:
        """Begin the checkpoint of ``step``; without ``behind`` it is complete then.

        ``held``: {"model": the parameters, "optimizer": its states}. ``files`` are the first process's to
        write, ``own_files`` everybody's. Returned are the checkpoints that have become complete.
        OSError, with the file and the rank, when it cannot be written; nothing of it is left then.
        """
        done = self.finish()
        started = time.perf_counter()
        hold = ExitStack()
        try:
            plan = Plan.of(held, self._ranks)
            folder = self._begin(step, plan, held, files or {}, hold)
            with self._ranks.together():
                content = plan.content()
                if self._behind:
                    content = [(file, block, np.array(values)) for file, block, values in content]
        except OSError as error:
            hold.close()
            raise self._told(error, step) from error
        except BaseException:
            hold.close()
            raise
        future = self._executor.submit(_write, folder, content, own_files or {})
        self._current = _Current(step, folder, started, future, hold=hold)
        self._current.stall = time.perf_counter() - started
        return done if self._behind else done + self.finish()

    def poll(self) -> list[Saved]:
        """Take the checkpoint that is on its way further, without waiting; those that became complete."""
        return self._advance(wait=False)

    def finish(self) -> list[Saved]:
        """Wait for the checkpoint that is on its way, if there is one."""
        return self._advance(wait=True)

    def abandon(self) -> None:
        """Give up the checkpoint that is on its way, if there is one; a process may call it alone."""
        if self._current is not None:
            futures.wait([self._current.future])
            self._current.hold.close()
            self._current = None

    def _begin(self, step: int, plan: Plan, held: Mapping, files: Files, hold: ExitStack) -> Path:
        folder = None
        with self._ranks.together():
            if self._ranks.first:
                folder = hold.enter_context(folders.begun(self._output_dir, step))
                _prepare(folder, plan, held, files)
        return Path(self._ranks.from_first(str(folder)))

    def _advance(self, wait: bool) -> list[Saved]:
        saved: list[Saved] = []
        while (current := self._current) is not None:
            entered = time.perf_counter()
            try:
                over = self._next_phase(current, wait)
            except OSError as error:
                self.abandon()
                raise self._told(error, current.step) from error
            except BaseException:
                self.abandon()
                raise
            now = time.perf_counter()
            current.stall += now - entered
            if over is None:
                break
            if over:
                self._current = None
                saved.append(Saved(current.step, now - current.started, current.stall))
        return saved

    def _next_phase(self, current: _Current, wait: bool) -> bool | None:
        """None when some process is not done with the phase, True when the checkpoint is complete."""
        if wait:
            futures.wait([current.future])
        done = current.future.done()
        error = current.future.exception() if done else None
        result = current.future.result() if done and error is None else None
        states = self._ranks.gather((done, described(error), result))
        raise_first([failed for _, failed, _ in states], error)
        if not all(done for done, *_ in states):
            return None
        if not current.written:
            current.written = True
            # One list for all: what a process sees of a folder of a shared file system may be a little older.
            with self._ranks.together():
                names = folders.contents(current.folder) if self._ranks.first else []
            names = {*self._ranks.from_first(names), *chain.from_iterable(written for *_, written in states)}
            share = self._ranks.share(sorted(names))
            current.future = self._executor.submit(folders.described, current.folder, share)
            return False
        files = {name: found for *_, described in states for name, found in described.items()}
        with self._ranks.together():
            if self._ranks.first:
                folders.commit(current.folder, folders.path_of(self._output_dir, current.step), files)
        current.hold.close()
        if self._ranks.first:
            self._prune()
        return True

    def _prune(self) -> None:
        """A checkpoint that cannot be removed is no reason to stop: the new one is complete."""
        try:
            folders.prune(self._output_dir, self._keep)
        except OSError as error:
            warnings.warn(f"old checkpoints in {self._output_dir} cannot be removed: {error}", stacklevel=2)

    def _told(self, error: OSError, step: int) -> OSError:
        """``error`` with the checkpoint it is about, and what is left."""
        try:
            complete = folders.complete(self._output_dir)
            kept = f"{complete[-1]} is complete and stays" if complete else "there is no complete one"
        except OSError:
            kept = f"{self._output_dir} cannot be read"
        file = f"{error.filename}: " if error.filename else ""
        why = error.strerror or error
        return OSError(error.errno, f"checkpoint-{step} cannot be written: {file}{why}; {kept}")
