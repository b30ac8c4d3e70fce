"""What a run measured: one record per step, evaluation and checkpoint, in ``metrics.jsonl``.

    {"step": 17, "loss": 6.93, "learning_rate": 0.00085, "grad_norm": 1.07, "tokens_per_s": 5120.4,
     "step_s": 0.4, "data_s": 0.001, "communication_s": 0.05, "exposed_s": 0.02, "mfu": 0.41,
     "peak_memory": 498073600}
    {"step": 50, "eval_loss": 5.61}
    {"step": 50, "checkpoint_s": 0.871, "stall_s": 0.112}

Losses are in nats per token, memory in bytes: the most that one device held. ``grad_norm`` is the norm of all
gradients before they were clipped; it is missing with ``--max_grad_norm 0``. ``step_s``, ``data_s``,
``communication_s`` and ``exposed_s`` are those of ``llm_npu.training.step_clock``: of the slowest process,
the last two of all on the average; they are there with several processes on virtual NPUs. ``mfu``, of
``flops``, is there with ``--peak_tflops``. A checkpoint took ``checkpoint_s`` seconds, of which the training
stood still for ``stall_s``. Of several processes the first one records what is true of all. PaddleNLP empties
``state.log_history`` at every log and rounds the loss, hence this record.
"""

from __future__ import annotations

import json
import resource
import statistics
from pathlib import Path

import paddle
from paddlenlp.trainer import TrainerCallback

from llm_npu.core import ranks
from llm_npu.core.console import Display
from llm_npu.core.untrusted import plain_json
from llm_npu.training.checkpoint.saving import Saved
from llm_npu.training.metrics.flops import Utilization
from llm_npu.training.step import Step
from paddle_fused import paddle_release, virtual_npu

FILE = "metrics.jsonl"


class Recorder(TrainerCallback):
    """Collects the records of a run, appends each to ``<output_dir>/metrics.jsonl`` and shows it.

    A resumed run keeps the records up to the step it resumes from. The trainer sets ``step``, the last step.
    ``utilization`` adds the share of the peak.
    """

    def __init__(self, display: Display, utilization: Utilization | None = None):
        self.records: list[dict] = []
        self.step: Step
        self.utilization = utilization
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
        self._learning_rate = kwargs["optimizer"].get_lr()

    def on_step_end(self, args, state, control, **kwargs):
        self._add(step=state.global_step, **self.figures(self.step))

    def figures(self, step: Step) -> dict[str, float]:
        """What the record of a step holds, by name."""
        times, speed = step.times, step.tokens / step.times.step
        found = {"loss": step.loss, "learning_rate": self._learning_rate}
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
        if self.utilization:
            found["mfu"] = self.utilization.of(speed)
        return found | {"peak_memory": step.memory}

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

    def shares(self) -> dict[str, float]:
        """{what: share of the time of all steps} for those of data, communication, exposed that are known."""
        steps = [record for record in self.records if "step_s" in record]
        known = [name for name in ("data", "communication", "exposed") if steps and f"{name}_s" in steps[-1]]
        total = sum(record["step_s"] for record in steps)
        return {name: sum(record.get(f"{name}_s", 0.0) for record in steps) / total for name in known}

    def _add(self, **record) -> None:
        self.records.append(record)
        if ranks.is_first():
            with self._file.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        self._display.show(record)


def read(file: str | Path) -> list[dict]:
    """The records of a ``metrics.jsonl``; a last line cut off by a killed process is left out."""
    records = []
    for line in Path(file).read_text(errors="replace").splitlines() if Path(file).exists() else []:
        try:
            record = plain_json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        records.append(record)
    return records


def peak_memory() -> int:
    """Bytes: the most that tensors on the device held at once; for the CPU place, the process's peak."""
    device = paddle.device.get_device()
    if device.startswith("cpu"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return paddle_release.max_memory_allocated(device)  # by default device 0, which is another rank's
