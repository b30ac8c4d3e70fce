"""What a run prints before it starts."""

from __future__ import annotations

import math
from collections import Counter

from llm_npu import config
from llm_npu.core import ranks
from llm_npu.core.console import say
from llm_npu.models.library import names
from llm_npu.surgery import Report
from llm_npu.training.run import Feature, Run


class Summary(Feature):
    """Prints the model, the device, the data and the fused operators."""

    def on_model(self, run: Run) -> None:
        arguments = run.arguments
        training = arguments.training
        parameters = sum(math.prod(parameter.shape) for parameter in run.model.parameters())
        dtype = "bf16" if training.bf16 else "fp16" if training.fp16 else "fp32"
        say(f"device   {training.device} ({run.device.kind}): {run.device.reason}")
        say(f"model    {arguments.model.model_name_or_path}, {parameters / 1e6:.1f}M parameters, {dtype}")
        for line in (*_shared(training), *_fused(run.fused)):
            say(line)
        say(
            f"data     {len(run.samples.train):,} samples of {_length(arguments)} tokens to train on, "
            f"{len(run.samples.valid):,} held out"
        )
        for note in (*arguments.notes, *run.samples.notes):
            say(f"note     {note}")
        for name, why in arguments.ineffective:
            say(f"note     --{name} has no effect: {why}")
        for name, why in config.ineffective_variables(run.device.kind):
            say(f"note     the environment variable {name} has no effect: {why}")
        for note in run.notes:
            say(f"note     {note}")


def _shared(training) -> list[str]:
    """The degrees of parallelism of a run of several processes."""
    if ranks.count() == 1:
        return []
    methods = {
        "data parallel": training.data_parallel_degree,
        "sharding "
        + " ".join(option.value for option in training.sharding): training.sharding_parallel_degree,
        "tensor parallel"
        + " with sequence parallel" * training.sequence_parallel: training.tensor_parallel_degree,
        "pipeline stages": training.pipeline_parallel_degree,
    }
    used = ", ".join(f"{name} {degree}" for name, degree in methods.items() if degree > 1)
    return [f"ranks    {ranks.count()} processes: {used}; the parameters are those of one"]


def _length(arguments: config.RunConfig) -> str:
    data = arguments.data
    return f"{'' if data.packing == 'stream' else 'up to '}{data.max_seq_length}"


def _fused(report: Report | None) -> list[str]:
    """How many layers of each operator are fused, and why the others are not."""
    if report is None:
        return [f"fused    nothing, as asked: the layers are those of {names.TITLE}"]
    left = Counter((row.operator, row.reason) for row in report.rows if not row.fused)
    notes = [f"note     {count} x {name} is not fused: {reason}" for (name, reason), count in left.items()]
    return [f"fused    {report.summary()}", *notes]
