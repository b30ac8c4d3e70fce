"""The metrics of a run: one record per step, evaluation and checkpoint, in ``metrics.jsonl``.

    {"step": 17, "loss": 6.93, "learning_rate": 0.00085, "grad_norm": 1.07, "tokens_per_s": 5120.4,
     "step_s": 0.4, "data_s": 0.001, "communication_s": 0.05, "exposed_s": 0.02, "mfu": 0.41,
     "peak_memory": 498073600}
    {"step": 50, "eval_loss": 5.61}
    {"step": 50, "checkpoint_s": 0.871, "stall_s": 0.112}

A trainer's own figures stand after the loss (``llm_npu.training.dpo``). Losses are in nats per token;
``peak_memory`` is the peak of the fullest device, in bytes. A step that left the weights as they were,
because a number was not finite, has ``"skipped": true``; numbers that are not finite are null. ``grad_norm``
is the norm of all gradients before clipping, absent with ``--max_grad_norm 0``. ``step_s``, ``data_s``,
``communication_s`` and ``exposed_s`` are those of ``llm_npu.training.step_clock``: the first two of the
slowest rank, the last two averaged over the ranks, and present only with several ranks on virtual NPUs.
``mfu``, of ``flops``, comes with ``--peak_tflops``. A checkpoint took ``checkpoint_s`` seconds, for
``stall_s`` of which the training waited. Rank 0 records for all ranks. PaddleNLP empties
``state.log_history`` at every log and rounds the loss, hence this record.
"""

from __future__ import annotations

import math
import resource
import statistics
from pathlib import Path

import paddle

import virtual_npu
from llm_npu.core import ranks
from llm_npu.core.console import Display, say
from llm_npu.training.checkpoint.saving import Saved
from llm_npu.training.metrics.flops import Utilization
from llm_npu.training.metrics.record_file import RecordFile
from llm_npu.training.metrics.records import read
from llm_npu.training.step import FinishedStep
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import paddle_release, strict_json

FILE = "metrics.jsonl"


class Recorder(TrainerCallback):
    """Collects the records of a run, appends each to ``<output_dir>/metrics.jsonl`` and shows it.

    A resumed run keeps the records up to the step that it resumes from. The trainer sets ``step``, the last
    step, and ``evaluation``, the figures of the last one. ``utilization`` adds MFU.
    """

    def __init__(self, display: Display, utilization: Utilization | None = None):
        self.records: list[dict] = []
        self.step: FinishedStep
        self.evaluation: dict[str, float]
        self.utilization = utilization
        self._display = display

    def on_train_begin(self, args, state, control, **kwargs):
        self._file = Path(args.output_dir) / FILE
        if state.global_step:
            notes: list[str] = []
            known = read(self._file, notes)
            self.records = _newest([record for record in known if record["step"] <= state.global_step])
            for note in notes if ranks.is_first() else ():
                say(f"note     {note}")
        self.records = [_with_nan(record) for record in self.records]
        if ranks.is_first():
            self._written = RecordFile(self._file, list(map(strict_json.dumps, self.records)))
        self._display.start(state.max_steps, args.logging_steps)

    def end(self) -> None:
        """The training has ended, for whatever reason."""
        self._display.stop()

    def flush(self) -> None:
        """The training is done: OSError if ``metrics.jsonl`` lacks records that cannot be written."""
        if ranks.is_first():
            self._written.flush()

    def on_step_begin(self, args, state, control, **kwargs):
        self._learning_rate = kwargs["optimizer"].get_lr()

    def on_step_end(self, args, state, control, **kwargs):
        self._add(step=state.global_step, **self.figures(self.step))

    def figures(self, step: FinishedStep) -> dict[str, float]:
        """The record of a step."""
        times, speed = step.times, step.tokens / step.times.step
        found = {"loss": step.loss, **step.figures, "learning_rate": self._learning_rate}
        if step.grad_norm is not None:
            found["grad_norm"] = step.grad_norm
        found |= {
            "tokens_per_s": round(speed, 1),
            "step_s": round(times.step, 6),
            "data_s": round(times.data, 6),
        }
        if ranks.count() > 1 and virtual_npu.is_active():
            found |= {
                "communication_s": round(times.communication, 6),
                "exposed_s": round(times.exposed, 6),
            }
        if step.skipped:
            found["skipped"] = True
        if self.utilization:
            found["mfu"] = self.utilization.of(speed)
        return found | {"peak_memory": step.memory}

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self._add(step=state.global_step, **self.evaluation)

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
        """The mean training loss of the last ``steps`` steps; a single step has few samples."""
        return statistics.fmean(loss for _, loss in self.losses()[-steps:])

    def peak_memory(self) -> int:
        """Peak bytes of the fullest device, as of the last step."""
        return max((size for size in self._values("peak_memory") if math.isfinite(size)), default=0)

    def tokens_per_s(self) -> float:
        """The median over the steps, which is robust to the warm-up of the first ones."""
        return statistics.median(self._values("tokens_per_s") or [0.0])

    def shares(self) -> dict[str, float]:
        """{name: share of the time of all steps}, for what is known of data, communication and exposed."""
        steps = [record for record in self.records if record.get("step_s", 0.0) > 0]
        known = [name for name in ("data", "communication", "exposed") if steps and f"{name}_s" in steps[-1]]
        total = sum(record["step_s"] for record in steps)
        return {name: sum(record.get(f"{name}_s", 0.0) for record in steps) / total for name in known}

    def _values(self, name: str) -> list[float]:
        """A figure of the steps, without those that lack it, such as steps of another program."""
        return [record[name] for record in self.records if "loss" in record and name in record]

    def _add(self, **record) -> None:
        self.records.append(record)
        if ranks.is_first():
            self._written.add(strict_json.dumps(record))
        self._display.show(record)


def _with_nan(record: dict) -> dict:
    """JSON has null for a number that is not finite."""
    return {name: float("nan") if value is None else value for name, value in record.items()}


def _newest(own: list[dict]) -> list[dict]:
    """The records that go furthest: where machines have disks of their own, rank 0 was on any of them."""
    last = [int(row[0]) for row in ranks.table([own[-1]["step"] if own else 0])]
    furthest = last.index(max(last))
    return own if furthest == 0 else ranks.gathered(own if ranks.number() == furthest else None)[furthest]


def peak_memory() -> int:
    """Peak bytes of tensors on the device; on the CPU place, the peak of the process."""
    device = paddle.device.get_device()
    if device.startswith("cpu"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return paddle_release.max_memory_allocated(device)  # the default, device 0, is another rank's
