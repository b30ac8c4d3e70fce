"""``--stage dpo`` as a feature of a run."""

from __future__ import annotations

import functools
import time

import numpy as np

from llm_npu.core import ranks
from llm_npu.core.console import say
from llm_npu.training.run import Feature, Run

from . import reference
from .trainer import DPOTrainer


class DPO(Feature):
    """Trains on preference pairs, with the log-probabilities of a cached reference."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.data.stage == "dpo"

    def configure(self, run: Run) -> None:
        from llm_npu.models.paddleformers.preference_loss import criterion  # imports the library

        asked = run.arguments.preference
        self._criterion = criterion(
            run.model_config, asked.dpo_loss, asked.dpo_beta, asked.dpo_label_smoothing
        )
        run.trainer_kind = functools.partial(DPOTrainer, criterion=self._criterion, asked=asked)

    def on_trainer(self, run: Run) -> None:
        parts = [run.samples.train]
        if run.arguments.training.do_eval:
            parts.append(run.samples.valid)
        if run.device.dry:  # values do not matter
            found = [np.zeros((len(part.sizes), 2), np.float32) for part in parts]
        else:
            found = self._logps(run, parts)
        for part, logps in zip(parts, found, strict=True):
            part.reference = logps

    def _logps(self, run: Run, parts: list) -> list[np.ndarray]:
        arguments, began = run.arguments, time.perf_counter()
        key = reference.fingerprint(arguments, run.text, run.tokenizer, parts)

        def compute() -> list[np.ndarray]:
            with reference.initial_weights(run.model, arguments, run.checkpoint):
                return reference.computed(run.trainer, parts, self._criterion)

        found, was_cached = reference.load(parts, key, arguments.data.data_cache, compute)
        if ranks.is_first():
            pairs = f"{sum(map(len, found)):,} pairs"
            how = "read from" if was_cached else f"computed in {time.perf_counter() - began:.1f} s, kept in"
            folder = reference.cached_folder(key, arguments.data.data_cache)
            say(f"reference {pairs}: log-probabilities {how} {folder}")
        return found
