"""Console output: the ``Summary`` before training, and the ``Results`` after training."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from llm_npu import config
from llm_npu.core import ranks
from llm_npu.core.console import mib, say
from llm_npu.data import pipeline
from llm_npu.inference import generate, options
from llm_npu.models import lora
from llm_npu.models.library import names
from llm_npu.surgery import Report
from llm_npu.training import checkpoint, metrics
from llm_npu.training.checkpoint.training import MERGED
from llm_npu.training.run import Feature, Run
from virtual_npu import KernelRecord

PROMPT = "def __init__(self"
SHOWN_KERNELS = 5


class Summary(Feature):
    """Prints the model, the device, the data and the fused operators."""

    def on_model(self, run: Run) -> None:
        arguments = run.arguments
        training = arguments.training
        parameters = sum(math.prod(parameter.shape) for parameter in run.model.parameters())
        dtype = "bf16" if training.bf16 else "fp16" if training.fp16 else "fp32"
        say(f"device   {training.device} ({run.device.kind}): {run.device.reason}")
        say(f"model    {arguments.model.model_name_or_path}, {parameters / 1e6:.1f}M parameters, {dtype}")
        for line in (*_shared(arguments), *_fused(run.fused)):
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


def _shared(arguments) -> list[str]:
    """The parallel degrees of a run with several processes."""
    if ranks.count() == 1:
        return []
    training = arguments.training
    methods = {
        "data parallel": training.data_parallel_degree,
        "sharding "
        + " ".join(option.value for option in training.sharding): training.sharding_parallel_degree,
        "tensor parallel"
        + " with sequence parallel" * training.sequence_parallel: training.tensor_parallel_degree,
        "pipeline stages": training.pipeline_parallel_degree,
        "sequences split over (Ulysses)": training.sep_parallel_degree // arguments.ring,
        "sequences split over (ring)": arguments.ring,
        "experts distributed over": arguments.expert_ranks,
    }
    used = ", ".join(f"{name} {degree}" for name, degree in methods.items() if degree > 1)
    return [f"ranks    {ranks.count()} processes: {used}; parameters are counted per process"]


def _length(arguments: config.RunConfig) -> str:
    data = arguments.data
    return f"{'' if data.packing == 'stream' else 'up to '}{data.max_seq_length}"


def _fused(report: Report | None) -> list[str]:
    """The number of fused layers for each operator, and why the others are not fused."""
    if report is None:
        return [f"fused    none: all layers of {names.TITLE} run unfused"]
    left = Counter((row.operator, row.reason) for row in report.rows if not row.fused)
    notes = [f"note     {count} x {name} is not fused: {reason}" for (name, reason), count in left.items()]
    return [f"fused    {report.summary()}", *notes]


class Results(Feature):
    """Prints losses, speed, memory, the backends that ran, and the files; plots the curves.

    With a single process it also prints a continuation of the prompt from before and after training. With
    several processes only rank 0 prints, without continuations; use ``llm-npu generate`` on the checkpoint.
    """

    def takes_part(self, run: Run) -> bool:
        return not run.device.dry

    def on_model(self, run: Run) -> None:
        self._prompt = pipeline.first_prompt(run.text, run.tokenizer) or PROMPT
        self._before = self._continuation(run)

    def report(self, run: Run) -> None:
        after = self._continuation(run)
        if not ranks.is_first():
            return
        recorder, output_dir = run.trainer.recorder, Path(run.trainer.args.output_dir)
        newest = checkpoint.complete(output_dir)[-1]
        if not recorder.losses():
            say(f"no training steps were run; files: {newest}")
            return
        peak = max(recorder.peak_memory(), metrics.peak_memory())  # of all devices; of this one
        lines = [*_losses(run), *_speed(recorder), f"memory   peak {mib(peak)}"]
        lines += _ran(run.ran)
        if run.trainer.args.deterministic:
            lines += _bits(newest)
        if after is not None:
            lines += [f"prompt   {self._prompt!r}", f"before   {self._before!r}", f"after    {after!r}"]
        files = [newest, output_dir / metrics.FILE, *_pictures(run)]
        if (output_dir / MERGED).is_dir():
            files.append(output_dir / MERGED)
        lines.append(f"files    {', '.join(map(str, files))}")
        if run.device.kind == "virtual":
            lines += _virtual(run.launches)
        for line in ["", *lines]:
            say(line)

    def _continuation(self, run: Run) -> str | None:
        """The continuation of the prompt; None with several processes or for a model without a cache."""
        if ranks.count() > 1 or run.model_config.model_type in options.WITHOUT_CACHE:
            return None
        return generate.continuation(lora.unwrapped(run.model), run.tokenizer, self._prompt)


def _losses(run: Run) -> list[str]:
    """The loss of the first step, of the last steps, and of the held-out samples."""
    recorder, baseline = run.trainer.recorder, run.trainer.baseline()
    losses, evaluations = recorder.losses(), recorder.eval_losses()
    (first, first_loss), (last, _) = losses[0], losses[-1]
    return [
        f"loss     {first_loss:.3f} at step {first} -> {_share(recorder.recent_loss(), baseline)}",
        f"         mean of the last steps up to {last}; {baseline.name} has {baseline.formula} = "
        f"{baseline.loss:.3f}",
        *[f"eval     loss {_share(loss, baseline)}" for _, loss in evaluations[-1:]],
    ]


def _pictures(run: Run) -> list[Path]:
    """Plot the curves and return the files."""
    recorder, output_dir = run.trainer.recorder, Path(run.trainer.args.output_dir)
    pictures = [output_dir / name for name in metrics.PLOTS]
    metrics.plot_loss(recorder, run.trainer.baseline(), pictures[0])
    metrics.plot_run(recorder, pictures[1])
    return pictures


def _speed(recorder: metrics.Recorder) -> list[str]:
    """Tokens per second, MFU and stalls."""
    speed, shares = recorder.tokens_per_s(), recorder.shares()
    lines = [f"speed    {speed:,.0f} tokens/s (median step)"]
    if recorder.utilization:
        lines.append(f"MFU      {100 * recorder.utilization.of(speed):.3g} % of {recorder.utilization}")
    if "data" not in shares:
        return lines
    stalls = f"stalls   data {100 * shares['data']:.1f} %"
    if "exposed" in shares:
        exposed, communication = (100 * shares[name] for name in ("exposed", "communication"))
        stalls += f", exposed communication {exposed:.1f} % (of {communication:.1f} %)"
    return [*lines, stalls]


def _ran(ran: list) -> list[str]:
    """The backend of each fused operator, and why earlier backends were not used."""
    lines = []
    for call in ran:
        lines.append(
            f"ran      {call.operator} {call.dtype}: {call.backend} {call.mode}, {call.count:,} calls"
        )
        lines += [f"           not {backend}: {reason}" for backend, reason in call.refused.items()]
        lines += [f"           before it {note}" for note in call.resharded]
    return lines


def _bits(folder: Path) -> list[str]:
    """SHA-256 digests of weights and optimizer state, to compare two runs."""
    digests = checkpoint.digests(folder)
    files = [name for name in digests if name.endswith(("safetensors", lora.FILE))]
    return [f"bits     {name}: SHA-256 {digests[name]}" for name in files]


def _share(loss: float, baseline: metrics.Baseline) -> str:
    return f"{loss:.3f} ({100 * loss / baseline.loss:.0f} % of {baseline.name})"


def _virtual(records: list[KernelRecord]) -> list[str]:
    """State that no card was involved, and list the kernels that would not run on a card's NPU."""
    lines = ["This ran on the virtual NPU, on the host CPU: its speed does not predict a card's."]
    away = sorted((r for r in records if r.placement != "npu"), key=lambda r: -r.calls)
    if not away:
        return [*lines, "On a card, every kernel launch of this training would stay on the NPU."]
    total, launches = sum(r.calls for r in records), sum(r.calls for r in away)
    shown = ", ".join(f"{r.name} {r.dtype} ({r.calls:,})" for r in away[:SHOWN_KERNELS])
    more = ", ..." if len(away) > SHOWN_KERNELS else ""
    return [
        *lines,
        f"On a card, {launches:,} of {total:,} kernel launches of this training would fall back from the NPU "
        f"to a CPU: {shown}{more}.",
    ]
