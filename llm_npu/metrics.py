"""What a run measured: one record per step and per evaluation, in ``metrics.jsonl`` and as a loss curve.

    {"step": 17, "loss": 6.93, "learning_rate": 0.00085, "grad_norm": 1.07, "tokens_per_s": 5120.4,
     "peak_memory": 498073600}
    {"step": 50, "eval_loss": 5.61}
    {"step": 50, "checkpoint_s": 0.871, "stall_s": 0.112}

Losses are in nats per token, memory in bytes: the most that one device held. ``grad_norm`` is the norm of all
gradients before they were clipped; it is missing with ``--max_grad_norm 0``. A checkpoint took
``checkpoint_s`` seconds, of which the training stood still for ``stall_s``. Of several processes the first
one records what is true of all. PaddleNLP empties ``state.log_history`` at every log and rounds
the loss, hence this record.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import time
from pathlib import Path

import paddle
from paddlenlp.trainer import TrainerCallback

from llm_npu import ranks
from llm_npu.checkpoint.saving import Saved
from llm_npu.console import Display
from llm_npu.step import Step

FILE = "metrics.jsonl"


class Recorder(TrainerCallback):
    """Collects the records of a run, appends each to ``<output_dir>/metrics.jsonl`` and shows it.

    A resumed run keeps the records up to the step it resumes from. The trainer sets ``step``, the last step.
    """

    def __init__(self, display: Display):
        self.records: list[dict] = []
        self.step: Step
        self._display = display

    def on_train_begin(self, args, state, control, **kwargs):
        self._file = Path(args.output_dir) / FILE
        if state.global_step:
            self.records = [record for record in read(self._file) if record["step"] <= state.global_step]
        if ranks.is_first():
            self._file.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        self._display.start(state.max_steps, args.logging_steps)

    def end(self) -> None:
        """The training has ended, in whatever way."""
        self._display.stop()

    def on_step_begin(self, args, state, control, **kwargs):
        self._started = time.perf_counter()
        self._learning_rate = kwargs["optimizer"].get_lr()

    def on_step_end(self, args, state, control, **kwargs):
        step = self.step
        self._add(
            step=state.global_step,
            loss=step.loss,
            learning_rate=self._learning_rate,
            **({} if step.grad_norm is None else {"grad_norm": step.grad_norm}),
            tokens_per_s=round(step.tokens / (time.perf_counter() - self._started), 1),
            peak_memory=step.memory,
        )

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self._add(step=state.global_step, eval_loss=metrics["eval_loss"])

    def saved(self, saved: Saved) -> None:
        """A checkpoint is complete."""
        self._add(step=saved.step, checkpoint_s=round(saved.seconds, 3), stall_s=round(saved.stall, 3))

    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every training step."""
        return [(record["step"], record["loss"]) for record in self.records if "loss" in record]

    def eval_losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every evaluation."""
        return [(record["step"], record["eval_loss"]) for record in self.records if "eval_loss" in record]

    def recent_loss(self, steps: int = 10) -> float:
        """The mean training loss of the last ``steps`` steps; a single one depends on its few samples."""
        return statistics.fmean(loss for _, loss in self.losses()[-steps:])

    def tokens_per_s(self) -> float:
        """The median over the steps: the first ones, which warm caches up, do not move it."""
        return statistics.median(record["tokens_per_s"] for record in self.records if "loss" in record)

    def _add(self, **record) -> None:
        self.records.append(record)
        if ranks.is_first():
            with self._file.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        self._display.show(record)


def read(file: str | Path) -> list[dict]:
    """The records of a ``metrics.jsonl``; a last line cut off by a killed process is left out."""
    records = []
    for line in Path(file).read_text().splitlines() if Path(file).exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def peak_memory() -> int:
    """Bytes: the most that tensors on the device held at once; for the CPU place, the process's peak."""
    if paddle.device.get_device().startswith("cpu"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return paddle.device.max_memory_allocated()


def plot(recorder: Recorder, vocab_size: int, file: str | Path) -> None:
    """Write the loss curve as PNG: training and evaluation loss over the steps, and ln(vocabulary)."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    axes.plot(*zip(*recorder.losses(), strict=True), linewidth=1, label="training")
    if evaluations := recorder.eval_losses():
        axes.plot(*zip(*evaluations, strict=True), marker="o", label="evaluation (held-out text)")
    axes.axhline(math.log(vocab_size), ls="--", color="grey", lw=1, label="guessing: ln(vocabulary)")
    axes.set(xlabel="step", ylabel="loss (nats per token)", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)
