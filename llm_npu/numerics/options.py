"""Adds to a trainer what its arguments ask for: --check_nan_inf, --compare_with, --dump_tensors."""

from __future__ import annotations

from llm_npu.config import RunConfig
from llm_npu.config.step_range import steps_of
from llm_npu.core.console import say
from llm_npu.device import Device

from .both_ways import CompareWith
from .dump import Dump
from .nan_inf import NonFiniteCheck


def attach(trainer, run: RunConfig, device: Device, report) -> None:
    """``report`` of ``surgery.apply_fused_kernels``; None when nothing is fused."""
    training = run.training
    if training.compare_with:
        trainer.add_callback(CompareWith(trainer, training.compare_with, run.fused.switches(), report, say))
    if training.dump_tensors:
        trainer.add_callback(Dump(trainer.model, training.output_dir, steps_of(training.dump_tensors)))
    if training.check_nan_inf:
        check = NonFiniteCheck(trainer.model, operators=device.kind != "card", backward=not training.fp16)
        trainer.training_step = check.around(trainer.training_step)
