"""What a run prints after training."""

from __future__ import annotations

from pathlib import Path

from llm_npu.core import ranks
from llm_npu.core.console import mib, say
from llm_npu.data import pipeline
from llm_npu.inference import generate, options
from llm_npu.models import lora
from llm_npu.training import checkpoint, metrics
from llm_npu.training.checkpoint.training import MERGED
from llm_npu.training.run import Feature, Run
from virtual_npu import KernelRecord

PROMPT = "def __init__(self"
SHOWN_KERNELS = 5


class Results(Feature):
    """Prints losses, speed, memory, the backends that ran, a text from before and after training, and the
    files; plots the curves.

    With several processes only the first one prints, without a text; scripts/generate.py generates it from
    the checkpoint.
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
            say(f"no step was trained; files: {newest}")
            return
        most = max(recorder.peak_memory(), metrics.peak_memory())  # of all devices; of this one, also since
        lines = [*_losses(run), *_speed(recorder), f"memory   {mib(most)} at the most"]
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
        """The continuation of the prompt; None with several processes, and for a model without a cache."""
        if ranks.count() > 1 or run.model_config.model_type in options.WITHOUT_CACHE:
            return None
        return generate.continuation(lora.unwrapped(run.model), run.tokenizer, self._prompt)


def _losses(run: Run) -> list[str]:
    """The loss at the first step, over the last steps, and over held-out samples."""
    recorder, baseline = run.trainer.recorder, run.trainer.baseline()
    losses, evaluations = recorder.losses(), recorder.eval_losses()
    (first, first_loss), (last, _) = losses[0], losses[-1]
    return [
        f"loss     {first_loss:.3f} at step {first} -> {_share(recorder.recent_loss(), baseline)}",
        f"         (mean of the last steps up to {last}; {baseline.name} is {baseline.formula} = "
        f"{baseline.loss:.3f})",
        *[f"held out {_share(loss, baseline)}" for _, loss in evaluations[-1:]],
    ]


def _pictures(run: Run) -> list[Path]:
    """Plot the curves; returns their files."""
    recorder, output_dir = run.trainer.recorder, Path(run.trainer.args.output_dir)
    pictures = [output_dir / name for name in metrics.PLOTS]
    metrics.plot_loss(recorder, run.trainer.baseline(), pictures[0])
    metrics.plot_run(recorder, pictures[1])
    return pictures


def _speed(recorder: metrics.Recorder) -> list[str]:
    """Tokens per second, MFU, and the waits of the steps."""
    speed, shares = recorder.tokens_per_s(), recorder.shares()
    lines = [f"speed    {speed:,.0f} tokens/s (median step)"]
    if recorder.utilization:
        lines.append(f"MFU      {100 * recorder.utilization.of(speed):.3g} % of {recorder.utilization}")
    if "data" not in shares:
        return lines
    waits = f"waits    {shares['data']:.1%} of the time for data"
    if "exposed" in shares:
        waits += f", {shares['exposed']:.1%} for communication, which took {shares['communication']:.1%}"
    return [*lines, waits]


def _ran(ran: list) -> list[str]:
    """The backend that computed each fused operator, and why the backends before it refused."""
    lines = []
    for each in ran:
        lines.append(
            f"ran      {each.operator} {each.dtype}: {each.backend} {each.mode}, {each.count:,} calls"
        )
        lines += [f"           not {backend}: {reason}" for backend, reason in each.refused.items()]
        lines += [f"           before it {note}" for note in each.resharded]
    return lines


def _bits(folder: Path) -> list[str]:
    """The digests of weights and optimizer state, by which two runs can be compared."""
    found = checkpoint.digests(folder)
    names = [name for name in found if name.endswith(("safetensors", lora.FILE))]
    return [f"bits     {name}: SHA-256 {found[name]}" for name in names]


def _share(loss: float, baseline: metrics.Baseline) -> str:
    return f"{loss:.3f}, {loss / baseline.loss:.0%} of {baseline.name}"


def _virtual(records: list[KernelRecord]) -> list[str]:
    """A reminder that no card was involved, and the kernels that a card would leave to a CPU."""
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
