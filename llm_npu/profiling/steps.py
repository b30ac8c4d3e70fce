"""``--profile``: a trainer callback that records some optimizer steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from llm_npu.config import ProfileWindow, profile_window
from llm_npu.core import ranks
from llm_npu.core.console import say
from llm_npu.profiling.capture import Capture
from llm_npu.training.run import Feature, Run
from llm_npu.training.upstream_trainer import TrainerCallback


class Profile(Feature):
    """``--profile``: records some optimizer steps."""

    def takes_part(self, run: Run) -> bool:
        return bool(run.arguments.training.profile)

    def on_trainer(self, run: Run) -> None:
        window = profile_window(run.arguments.training.profile)
        run.trainer.add_callback(ProfileSteps(window, run.early.profile_dir, say))


class ProfileSteps(TrainerCallback):
    """Records the steps of ``window`` to ``folder``, and reports this with ``say``.

    Work between steps, for example evaluation, is attributed to the following step. Training that resumes
    after the window records nothing.
    """

    def __init__(self, window: ProfileWindow, folder: Path, say: Callable[[str], None]):
        self._window, self._folder, self._say = window, folder, say
        self._capture: Capture | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step >= self._window.first:
            self._log(f"{self._window} are before step {state.global_step}; nothing is recorded")
            return
        if ranks.is_first():  # left by an earlier run
            shutil.rmtree(self._folder, ignore_errors=True)
        ranks.wait()

    def on_step_begin(self, args, state, control, **kwargs):
        window, step = self._window, state.global_step + 1
        if self._capture is None and window.first - window.warmup <= step <= window.first:
            self._capture = Capture(
                self._folder,
                active=window.last - window.first + 1,
                warmup=window.first - step,
                shapes=window.shapes,
                memory=window.memory,
                call_sites=window.call_sites,
            )
            self._capture.start()

    def on_step_end(self, args, state, control, **kwargs):
        if self._capture is None or self._capture.done:
            return
        self._capture.step()
        if self._capture.done:
            self._log(f"{self._window} are in {self._folder}")

    def on_train_end(self, args, state, control, **kwargs):
        if self._capture is None or self._capture.done:
            return
        recorded = self._capture.stop()
        self._log(
            f"training ended at step {state.global_step}, before the end of {self._window}; "
            + (f"the recorded steps are in {self._folder}" if recorded else "nothing was recorded")
        )

    def _log(self, text: str) -> None:
        if ranks.is_first():
            self._say(f"profile: {text}")
