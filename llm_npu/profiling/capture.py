"""Records some steps of a program with Paddle's profiler, and with msprof on a card."""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import virtual_npu
from llm_npu.core.errors import UserError
from llm_npu.profiling import folders, msprof, parts, timeline

if TYPE_CHECKING:
    import paddle

TRACE, PADDLE_TRACE, SUMMARY = "trace.json", "host.paddle_trace.json", "summary.txt"


class Capture:
    """Records the ``active`` steps of a program; call ``step()`` at the end of each step.

    Attributes:
        profiler: Paddle's ``Profiler``.
        done: True once the files are written.

    Args:
        folder: ``folder``/rank_N receives the files listed in ``docs/profiling.md``.
        active: number of recorded steps.
        warmup: number of preceding steps with the profiler ready.
        skip: number of initial steps without the profiler.
        shapes: add the kernels' shapes and dtypes to the timeline.
        memory: add the events of Paddle's allocators.
        call_sites: add the source line that called each kernel (virtual NPU only).
        model: a vision-language model, whose vision tower, projector and text have rows in the report.

    Raises:
        ValueError: on entry for invalid numbers, a folder that already contains a profile, a device other
            than npu, another active Paddle profiler, or a ``model`` without such parts. On a card, also if
            msprof is missing or ``prepare`` was not called in time. On exit, if the first recorded step was
            not reached.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        active: int,
        warmup: int = 1,
        skip: int = 0,
        shapes: bool = False,
        memory: bool = False,
        call_sites: bool = False,
        model: paddle.nn.Layer | None = None,
    ):
        if active < 1 or warmup < 0 or skip < 0:
            raise UserError(
                f"The capture has {active} active, {skip} skipped and {warmup} warm-up steps; accepted: "
                "1 or more active steps, 0 or more of the others"
            )
        self.folder = folders.of_rank(folder)
        self.done = False
        self._base = folder
        self._skip, self._warmup, self._active = skip, warmup, active
        self._shapes, self._memory, self._call_sites = shapes, memory, call_sites
        self._steps = 0
        self._model, self._marks = model, None

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if not self.stop() and error is None:
            raise UserError(
                f"The capture ended after {self._steps} steps, before the first one to record (after "
                f"{self._skip} skipped and {self._warmup} warm-up steps); run more steps, or skip fewer"
            )

    def start(self) -> None:
        """Start with the first step, like entering the context."""
        from paddle import profiler

        self._virtual = _is_virtual(self._call_sites)
        if not self._virtual:
            msprof.check()
            if not folders.is_prepared(self._base):
                raise UserError(
                    "A card's plugin reads the profile folder when paddle is imported: call "
                    f"llm_npu.profiling.prepare({str(self._base)!r}) before that, or set "
                    f"{' and '.join(folders.VARIABLES)} to {self.folder}"
                )
        if folders.profiles(self.folder):
            raise UserError(f"{self.folder} already contains a profile; remove it or specify another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        folders.write_machine(self.folder)
        folders.prepare(self._base)
        if self._virtual:
            virtual_npu.record_call_sites(self._call_sites)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning about a missing warm-up, which was requested
            schedule = profiler.make_scheduler(
                closed=self._skip, ready=self._warmup, record=self._active, repeat=1
            )
        self.profiler = profiler.Profiler(
            targets=[profiler.ProfilerTarget.CPU, profiler.ProfilerTarget.CUSTOM_DEVICE],
            custom_device_types=["npu"],
            scheduler=schedule,
            on_trace_ready=self._write,
            profile_memory=self._memory,
        )
        if self.profiler.profiler is None:
            raise UserError(
                "Paddle supports one profiler at a time, and another profiler is active; stop it first"
            )
        self._wait_at_border()
        if self._model is not None:
            self._marks = parts.Marks(self._model)
        self.profiler.start()

    def step(self) -> None:
        """Mark the end of a step."""
        if self.done:
            return
        self._steps += 1
        self._wait_at_border()
        self.profiler.step()
        if self.done:
            self._end()

    def stop(self) -> bool:
        """Stop early and write the recorded steps; return whether there are any."""
        from paddle.profiler import ProfilerState

        if self.done:
            return True
        ready = self.profiler.current_state == ProfilerState.READY
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "nothing is saved"; the return value reports it
            self._end()
        if ready:  # stopping a ready profiler records briefly, and Paddle reports nothing
            for profile in folders.profiles(self.folder):
                shutil.rmtree(profile)
        return self.done

    def _wait_at_border(self) -> None:
        """Synchronise the device before the first recorded step and after the last."""
        if self._steps in (self._skip + self._warmup, self._skip + self._warmup + self._active):
            import paddle

            paddle.device.synchronize()

    def _end(self) -> None:
        if self._marks:
            self._marks.remove()
        self.profiler.stop()
        self.profiler.profiler = None  # Paddle supports one profiler at a time
        if self._virtual:
            virtual_npu.record_call_sites(False)

    def _write(self, profiler) -> None:
        profiles = folders.profiles(self.folder)
        if not self._virtual:
            for profile in profiles:
                msprof.export(profile)
        profiler.export(str(self.folder / PADDLE_TRACE), "json")
        table = io.StringIO()
        with contextlib.redirect_stdout(table):
            profiler.summary()
        (self.folder / SUMMARY).write_text(table.getvalue(), encoding="utf-8")
        timelines = msprof.timelines(profiles)
        device = "virtual NPU on a host CPU, not a card" if self._virtual else "Ascend card"
        trees = profiler.profiler_result.get_data()
        summaries = msprof.summaries(profiles) if self._shapes else []
        notes = timeline.write(self.folder / TRACE, trees, timelines, summaries, folders.rank(), device)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        self.done = True


def _is_virtual(call_sites: bool) -> bool:
    """Whether the program runs on the virtual NPU; raises ValueError for a device other than npu."""
    import paddle

    if not paddle.device.get_device().startswith("npu"):
        raise UserError(
            f"Profiling needs the device npu, but the program runs on {paddle.device.get_device()}; call "
            "paddle.set_device('npu') first"
        )
    virtual = virtual_npu.is_active()
    if call_sites and not virtual:
        raise UserError("call_sites are available only on the virtual NPU; omit them on a card")
    return virtual
