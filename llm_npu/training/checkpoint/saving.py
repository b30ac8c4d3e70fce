"""Writes a checkpoint as files of whole tensors; every rank writes its own parts.

    1  the ranks agree on a write plan: each part once, evenly distributed
    2  rank 0 creates the staging folder, the files at full size, and the small files
    3  every rank writes and flushes its parts
    4  every rank computes the checksums of some of the files
    5  rank 0 flushes the folder, marks it as complete and renames it

If each machine has its own disk (``disks``), the first rank of each disk performs steps 2 and 5 there, for
the files of its ranks' parts; only rank 0 writes the small files. In step 5 the other disks commit first,
with a preliminary mark (``folder``).

The ranks synchronize between steps. A failure on one rank is raised on all ranks, and the folder is removed.
Steps 3 and 4 can run in a background thread: the parts are copied to host memory first, and after every
training step the ranks check whether all threads are done. The threads never communicate, because collectives
from two threads have no common order on all ranks.
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

from llm_npu.core.errors import naming
from llm_npu.core.ranks import ALONE, Ranks, described, raise_first
from llm_npu.core.tensor_file import Writer
from llm_npu.training.checkpoint import folder as folders
from llm_npu.training.checkpoint.disks import Disks
from llm_npu.training.checkpoint.tensors import LocalTensor
from llm_npu.training.checkpoint.write_plan import WritePlan, create_files

# {name of a file: a function that writes it to a folder}
Files = Mapping[str, Callable[[Path], None]]


class Saved(NamedTuple):
    """A completed checkpoint: the seconds it took, and the seconds that training was stalled."""

    step: int
    seconds: float
    stall: float


def _prepare(folder: Path, plan: WritePlan, kinds: Iterable[str], files: Files) -> None:
    """Perform step 2 on the first rank of a disk."""
    create_files(folder, plan.files, kinds)
    _write_files(folder, files)


def _write_files(folder: Path, files: Files) -> None:
    for name, write in files.items():
        with naming(folder / name):
            write(folder)


def _write(folder: Path, content: Iterable[tuple[str, object, np.ndarray]], own_files: Files) -> list[str]:
    """Perform step 3 and return the names of the files that this rank has written to."""
    writers: dict[str, Writer] = {}
    with ExitStack() as stack:
        for file, block, values in content:
            if file not in writers:
                writers[file] = Writer(folder / file)
                stack.callback(writers[file].close)
            writers[file].write(block.name, block.offset, values)
    _write_files(folder, own_files)
    return [*writers, *own_files]


def export(folder: Path, held: Sequence[LocalTensor], files: Files, ranks: Ranks) -> None:
    """Write the model sharded over ``ranks``, and the small ``files``; ``folder`` appears atomically.

    The result equals the weights in a checkpoint. Collective.
    """
    from llm_npu.core.atomic import replace, unfinished

    plan = WritePlan.of({"model": held}, ranks)
    with ExitStack() as stack:
        new = None
        with ranks.raise_on_all_ranks():
            if ranks.first:
                new = stack.enter_context(unfinished(folder))
                _prepare(new, plan, ["model"], files)
        new = Path(ranks.from_first(str(new)))
        with ranks.raise_on_all_ranks():
            _write(new, plan.content(), {})
        with ranks.raise_on_all_ranks():
            if ranks.first:
                replace(new, folder)


class _Inline(futures.Executor):
    """Runs a submitted function immediately."""

    def submit(self, function, /, *arguments):
        future: futures.Future = futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass
class _Current:
    """The checkpoint in progress."""

    step: int
    folder: Path
    started: float
    future: futures.Future
    prune: bool
    stall: float = 0.0
    written: bool = False
    hold: ExitStack = field(default_factory=ExitStack)  # the staging folder, on the first rank of a disk


class Checkpoints:
    """Writes the checkpoints of a run to ``output_dir``, and keeps the newest ``keep``.

    At most one checkpoint is in progress. All ``ranks`` make the same calls.

    Args:
        async_save: Write in a thread; call ``poll`` after every training step and ``finish`` at the end.
        disks: The disks of ``output_dir``; by default all ranks see one folder.
    """

    def __init__(
        self,
        output_dir: str | Path,
        ranks: Ranks = ALONE,
        keep: int | None = None,
        async_save: bool = False,
        disks: Disks | None = None,
    ):
        self._output_dir, self._ranks, self._keep, self._async_save = (
            Path(output_dir),
            ranks,
            keep,
            async_save,
        )
        self._disks = Disks.shared(ranks) if disks is None else disks
        self._executor = (
            futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if async_save else _Inline()
        )
        self._current: _Current | None = None

    def save(
        self,
        step: int,
        held: Mapping[str, Sequence[LocalTensor]],
        files: Files | None = None,
        own_files: Files | None = None,
        prune: bool = True,
    ) -> list[Saved]:
        """Start the checkpoint of ``step``; without ``async_save``, also complete it.

        Args:
            held: {"model": parameters, "optimizer": optimizer states}.
            files: Files that rank 0 writes.
            own_files: Files that this rank writes.
            prune: Whether to remove the oldest checkpoint afterwards.

        Returns:
            The checkpoints completed by this call.

        Raises:
            OSError: The checkpoint cannot be written; names the file and the rank. The staging folder is
            removed.
        """
        done = self.finish()
        started = time.perf_counter()
        hold = ExitStack()
        try:
            plan = WritePlan.of(held, self._ranks, self._disks)
            folder = self._begin(step, plan, held, files or {}, hold)
            with self._ranks.raise_on_all_ranks():
                content = plan.content()
                if self._async_save:
                    content = [(file, block, np.array(values)) for file, block, values in content]
        except OSError as error:
            hold.close()
            raise self._with_remaining(error, step) from error
        except BaseException:
            hold.close()
            raise
        future = self._executor.submit(_write, folder, content, own_files or {})
        self._current = _Current(step, folder, started, future, prune, hold=hold)
        self._current.stall = time.perf_counter() - started
        return done if self._async_save else done + self.finish()

    def poll(self) -> list[Saved]:
        """Advance the checkpoint in progress without waiting; return completed checkpoints."""
        return self._advance(wait=False)

    def finish(self) -> list[Saved]:
        """Wait for the checkpoint in progress, if any."""
        return self._advance(wait=True)

    def abandon(self) -> None:
        """Discard the checkpoint in progress, if any. Not collective."""
        if self._current is not None:
            futures.wait([self._current.future])
            self._current.hold.close()
            self._current = None

    def _begin(self, step: int, plan: WritePlan, held: Mapping, files: Files, hold: ExitStack) -> Path:
        folder = None
        with self._ranks.raise_on_all_ranks():
            if self._disks.first:
                folder = hold.enter_context(folders.staging_folder(self._output_dir, step))
                _prepare(folder, plan, held, files if self._ranks.first else {})
        return Path(self._disks.from_first(str(folder)))

    def _advance(self, wait: bool) -> list[Saved]:
        saved: list[Saved] = []
        while (current := self._current) is not None:
            entered = time.perf_counter()
            try:
                is_complete = self._next_phase(current, wait)
            except OSError as error:
                self.abandon()
                raise self._with_remaining(error, current.step) from error
            except BaseException:
                self.abandon()
                raise
            now = time.perf_counter()
            current.stall += now - entered
            if is_complete is None:
                break
            if is_complete:
                self._current = None
                saved.append(Saved(current.step, now - current.started, current.stall))
        return saved

    def _next_phase(self, current: _Current, wait: bool) -> bool | None:
        """Advance one phase; returns whether the checkpoint is complete, None if a rank is not done."""
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
            # All ranks of a disk use one list: some may see an older state of a shared folder.
            with self._ranks.raise_on_all_ranks():
                names = folders.contents(current.folder) if self._disks.first else []
            written = [states[rank][2] for rank in self._disks.members]
            names = {*self._disks.from_first(names), *chain.from_iterable(written)}
            share = self._disks.share(sorted(names))
            current.future = self._executor.submit(folders.checksums, current.folder, share)
            return False
        files = {name: about for *_, checksums in states for name, about in checksums.items()}
        self._commit(current, files)
        current.hold.close()
        if self._disks.first and current.prune:
            self._prune()
        return True

    def _commit(self, current: _Current, files: dict[str, dict[str, int | str]]) -> None:
        """Perform step 5. Rank 0's rename commits: no disk has the mark before; all files exist after."""
        final, ranks = folders.path_of(self._output_dir, current.step), self._ranks
        if self._disks.several:
            with ranks.raise_on_all_ranks():
                if self._disks.first and not ranks.first:
                    folders.commit(current.folder, final, files, folders.PREPARED)
        with ranks.raise_on_all_ranks():
            if ranks.first:
                folders.commit(current.folder, final, files)
        if self._disks.several:
            with ranks.raise_on_all_ranks():
                if self._disks.first and not ranks.first:
                    folders.confirm(final)

    def _prune(self) -> None:
        """Remove old checkpoints. A failure does not stop the run, since the new checkpoint is complete."""
        try:
            folders.prune(self._output_dir, self._keep)
        except OSError as error:
            warnings.warn(f"cannot remove old checkpoints in {self._output_dir}: {error}", stacklevel=2)

    def _with_remaining(self, error: OSError, step: int) -> OSError:
        """Add the failed and the remaining checkpoint to ``error``."""
        try:
            complete = folders.complete(self._output_dir)
            kept = (
                f"{complete[-1]} is complete and is kept" if complete else "there is no complete checkpoint"
            )
        except OSError:
            kept = f"{self._output_dir} cannot be read"
        file = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        return OSError(error.errno, f"checkpoint-{step} cannot be written: {file}{reason}; {kept}")
