"""What a run says before it starts and after it ends."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from llm_npu import config
from llm_npu.core import ranks
from llm_npu.core.console import mib, say
from llm_npu.device import Device
from llm_npu.models.paddlenlp import lora
from llm_npu.surgery import Report
from llm_npu.training import checkpoint, metrics
from llm_npu.training.checkpoint import merged
from paddle_fused.virtual_npu import KernelRecord

SHOWN_KERNELS = 5


def start(
    run: config.RunConfig, device: Device, model, report: Report | None, samples, notes: list[str]
) -> None:
    """The device, the model, what is fused in it, the data, the arguments that have no effect, and ``notes``.

    ``report`` of ``surgery.apply_fused_kernels``; None when the run wants none of them.
    """
    parameters = sum(math.prod(parameter.shape) for parameter in model.parameters())
    dtype = "bf16" if run.training.bf16 else "fp16" if run.training.fp16 else "fp32"
    say(f"device   {run.training.device} ({device.kind}): {device.reason}")
    say(f"model    {run.model.model_name_or_path}, {parameters / 1e6:.1f}M parameters, {dtype}")
    for line in _shared(run.training):
        say(line)
    for line in _fused(report):
        say(line)
    say(
        f"data     {len(samples.train):,} samples of {_length(run)} tokens to train on, "
        f"{len(samples.valid):,} held out"
    )
    for note in (*run.notes, *samples.notes):
        say(f"note     {note}")
    for name, why in config.ineffective(run):
        say(f"note     --{name} has no effect: {why}")
    for name, why in config.ineffective_variables(device.kind):
        say(f"note     the environment variable {name} has no effect: {why}")
    for note in notes:
        say(f"note     {note}")


def _shared(training) -> list[str]:
    """How several processes share the work, and this one's share of the parameters above."""
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


def _length(run: config.RunConfig) -> str:
    return f"{'' if run.data.packing == 'stream' else 'up to '}{run.data.max_seq_length}"


def stopped(trainer) -> int:
    """After a signal; returns the exit code."""
    step, signal = trainer.state.global_step, trainer.stop.received
    say(f"stopped by {signal.name} after step {step}; continue with --resume_from_checkpoint")
    return 128 + signal


def finish(
    trainer,
    device: Device,
    launches: list[KernelRecord],
    ran: list,
    prompt: str,
    before: str | None,
    after: str | None,
) -> None:
    """Losses, speed, memory, fused operators, text and the files that were written; draws the loss curve.

    ``launches`` are the kernels that the training launched on a virtual device, ``ran`` the calls of fused
    operators in it, as ``paddle_fused.what_ran`` gives them. ``before`` and ``after``: the continuations of
    ``prompt``, None where none were generated. Of several processes, the first one speaks.
    """
    if not ranks.is_first():
        return
    recorder, output_dir = trainer.recorder, Path(trainer.args.output_dir)
    newest = checkpoint.complete(output_dir)[-1]
    losses, evaluations = recorder.losses(), recorder.eval_losses()
    if not losses:
        say(f"no step was trained; files: {newest}")
        return
    vocabulary = trainer.model.config.vocab_size
    pictures = [output_dir / "loss.png", output_dir / "metrics.png"]
    metrics.plot_loss(recorder, vocabulary, pictures[0])
    metrics.plot_run(recorder, pictures[1])
    (first, first_loss), (last, _), guessing = losses[0], losses[-1], math.log(vocabulary)
    say()
    say(f"loss     {first_loss:.3f} at step {first} -> {_share(recorder.recent_loss(), guessing)}")
    say(f"         (mean of the last steps up to {last}; guessing is ln(vocabulary) = {guessing:.3f})")
    if evaluations:
        say(f"held out {_share(evaluations[-1][1], guessing)}")
    for line in _speed(recorder):
        say(line)
    say(f"memory   {mib(metrics.peak_memory())} at the most")
    for line in _ran(ran):
        say(line)
    if trainer.args.deterministic:
        for line in _bits(newest):
            say(line)
    if before is not None:
        say(f"prompt   {prompt!r}")
        say(f"before   {before!r}")
        say(f"after    {after!r}")
    files = [newest, output_dir / metrics.FILE, *pictures]
    if (output_dir / merged.MERGED).is_dir():
        files.append(output_dir / merged.MERGED)
    say(f"files    {', '.join(map(str, files))}")
    if device.kind == "virtual":
        for line in _virtual(launches):
            say(line)


def _speed(recorder: metrics.Recorder) -> list[str]:
    """Tokens a second, the share of the peak, and what the steps waited for."""
    speed, shares = recorder.tokens_per_s(), recorder.shares()
    lines = [f"speed    {speed:,.0f} tokens/s (median step)"]
    if recorder.utilization:
        lines.append(f"MFU      {100 * recorder.utilization.of(speed):.3g} % of {recorder.utilization}")
    waits = f"waits    {shares['data']:.1%} of the time for data"
    if "exposed" in shares:
        waits += f", {shares['exposed']:.1%} for communication, which took {shares['communication']:.1%}"
    return [*lines, waits]


def _fused(report: Report | None) -> list[str]:
    """How many sites of each operator are fused, and why others are not."""
    if report is None:
        return ["fused    nothing, as asked: the model is PaddleNLP's"]
    left = Counter((row.operator, row.reason) for row in report.rows if not row.fused)
    notes = [f"note     {count} x {name} is not fused: {reason}" for (name, reason), count in left.items()]
    return [f"fused    {report.summary()}", *notes]


def _ran(ran: list) -> list[str]:
    """Which backend computed each fused operator; beside the first one asked, why that one did not."""
    lines = []
    for each in ran:
        lines.append(
            f"ran      {each.operator} {each.dtype}: {each.backend} {each.mode}, {each.count:,} calls"
        )
        lines += [f"           not {backend}: {reason}" for backend, reason in each.refused.items()]
        lines += [f"           before it {note}" for note in each.resharded]
    return lines


def _bits(folder: Path) -> list[str]:
    """What two runs can be compared by: the digests of the weights and of the optimizer's state."""
    found = checkpoint.digests(folder)
    names = [name for name in found if name.endswith(("safetensors", lora.FILE))]
    return [f"bits     {name}: SHA-256 {found[name]}" for name in names]


def _share(loss: float, guessing: float) -> str:
    return f"{loss:.3f}, {loss / guessing:.0%} of guessing"


def _virtual(records: list[KernelRecord]) -> list[str]:
    """That no card was involved, and what a card would leave to its host."""
    lines = ["This ran on the virtual NPU, on the host CPU: its speed says nothing about a card."]
    away = sorted((r for r in records if r.placement != "npu"), key=lambda r: -r.calls)
    if not away:
        return [*lines, "On a card, every kernel launch of this training would stay on the NPU."]
    total, launches = sum(r.calls for r in records), sum(r.calls for r in away)
    names = ", ".join(f"{r.name} {r.dtype} ({r.calls:,})" for r in away[:SHOWN_KERNELS])
    more = ", ..." if len(away) > SHOWN_KERNELS else ""
    return [
        *lines,
        f"On a card, {launches:,} of {total:,} kernel launches of this training would leave the NPU "
        f"for a CPU: {names}{more}.",
    ]
