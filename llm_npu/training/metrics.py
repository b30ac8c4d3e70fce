"""The metrics of a run: one record per step, evaluation and checkpoint, in ``metrics.jsonl``, and plots.

    {"step": 17, "loss": 6.93, "learning_rate": 0.00085, "grad_norm": 1.07, "tokens_per_s": 5120.4,
     "step_s": 0.4, "data_s": 0.001, "communication_s": 0.05, "exposed_s": 0.02, "mfu": 0.41,
     "peak_memory": 498073600}
    {"step": 50, "eval_loss": 5.61}
    {"step": 50, "checkpoint_s": 0.871, "stall_s": 0.112}

Fields:
    loss, eval_loss: In nats per token. A trainer can add more values after the loss.
    grad_norm: The norm of all gradients before clipping; absent with ``--max_grad_norm 0``.
    step_s, data_s: Times of the slowest rank (`llm_npu.training.step.StepTimes`).
    communication_s, exposed_s: Mean over the ranks; only with several ranks on virtual NPUs.
    mfu: Only with ``--peak_tflops`` (`Utilization`).
    peak_memory: The highest peak of all devices, in bytes.
    dropped_share, eval_dropped_share: The share of choices of experts that
        ``--moe_expert_capacity_factor`` dropped, mean over the ranks.
    skipped: true for a step that left the weights unchanged because of NaN or infinity.
    checkpoint_s, stall_s: The duration of a checkpoint, and for how long training waited for it.

NaN and infinity are written as null. Rank 0 records for all ranks. This record exists because PaddleNLP
clears ``state.log_history`` at every log and rounds the loss.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle

import virtual_npu
from llm_npu.config import RunConfig
from llm_npu.core import ranks
from llm_npu.core.atomic import new_file
from llm_npu.core.console import Display, say
from llm_npu.core.errors import UserError, naming
from llm_npu.core.peak_flops import PEAKS, stated
from llm_npu.core.untrusted import plain_json
from llm_npu.launch import own_file
from llm_npu.models.flops import flops_per_token
from llm_npu.training.checkpoint.saving import Saved
from llm_npu.training.step import FinishedStep
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import paddle_release, strict_json

FILE = "metrics.jsonl"
PLOTS = ("loss.png", "metrics.png")
FILES = (FILE, *PLOTS)

LONGEST_LINE = 1 << 20  # characters
LARGEST_INTEGER = 1 << 53  # exactly representable in float64
# Fields that the program uses; a record may have more.
NUMBERS = ("loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_s", "step_s", "data_s")
NUMBERS += ("communication_s", "exposed_s", "mfu", "peak_memory", "checkpoint_s", "stall_s")

PRODUCT_SIZE, PRODUCT_ROUNDS = 1024, 7  # of the matrix product used to measure this device
MIB = 2**20
TERA = 1e12


class Recorder(TrainerCallback):
    """Collects the records of a run, appends them to ``<output_dir>/metrics.jsonl`` and displays them.

    A resumed run keeps the records up to the step it resumes from.

    Attributes:
        step: The last step; set by the trainer.
        evaluation: The metrics of the last evaluation; set by the trainer.
        utilization: Used to compute the MFU.
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
            records = read(self._file, notes)
            self.records = _newest([record for record in records if record["step"] <= state.global_step])
            for note in notes if ranks.is_first() else ():
                say(f"note     {note}")
        self.records = [_with_nan(record) for record in self.records]
        if ranks.is_first():
            self._written = RecordFile(self._file, list(map(strict_json.dumps, self.records)))
        self._display.start(state.max_steps, args.logging_steps)

    def end(self) -> None:
        """Stop the display after training ended, with or without an error."""
        self._display.stop()

    def flush(self) -> None:
        """Write pending records to ``metrics.jsonl``. Raises OSError on failure."""
        if ranks.is_first():
            self._written.flush()

    def on_step_begin(self, args, state, control, **kwargs):
        self._learning_rate = kwargs["optimizer"].get_lr()

    def on_step_end(self, args, state, control, **kwargs):
        self._add(step=state.global_step, **self.figures(self.step))

    def figures(self, step: FinishedStep) -> dict[str, float]:
        """The record of a step."""
        times, speed = step.times, step.tokens / step.times.step
        record = {"loss": step.loss, **step.figures, "learning_rate": self._learning_rate}
        if step.grad_norm is not None:
            record["grad_norm"] = step.grad_norm
        record |= {
            "tokens_per_s": round(speed, 1),
            "step_s": round(times.step, 6),
            "data_s": round(times.data, 6),
        }
        if ranks.count() > 1 and virtual_npu.is_active():
            record |= {
                "communication_s": round(times.communication, 6),
                "exposed_s": round(times.exposed, 6),
            }
        if step.skipped:
            record["skipped"] = True
        if self.utilization:
            record["mfu"] = self.utilization.of(speed)
        return record | {"peak_memory": step.memory}

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self._add(step=state.global_step, **self.evaluation)

    def saved(self, saved: Saved) -> None:
        """Record a completed checkpoint."""
        self._add(step=saved.step, checkpoint_s=round(saved.seconds, 3), stall_s=round(saved.stall, 3))

    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every training step."""
        return [(record["step"], record["loss"]) for record in self.records if "loss" in record]

    def eval_losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every evaluation."""
        return [(record["step"], record["eval_loss"]) for record in self.records if "eval_loss" in record]

    def recent_loss(self, steps: int = 10) -> float:
        """The mean training loss of the last ``steps`` steps, since a single step has few samples."""
        return statistics.fmean(loss for _, loss in self.losses()[-steps:])

    def peak_memory(self) -> int:
        """The highest peak of all devices up to the last step, in bytes."""
        return max((size for size in self._values("peak_memory") if math.isfinite(size)), default=0)

    def tokens_per_s(self) -> float:
        """The median over all steps, which is robust to the warm-up of the first steps."""
        return statistics.median(self._values("tokens_per_s") or [0.0])

    def shares(self) -> dict[str, float]:
        """{name: fraction of the total step time} for data, communication and exposed, if recorded."""
        steps = [record for record in self.records if record.get("step_s", 0.0) > 0]
        names = [name for name in ("data", "communication", "exposed") if steps and f"{name}_s" in steps[-1]]
        total = sum(record["step_s"] for record in steps)
        return {name: sum(record.get(f"{name}_s", 0.0) for record in steps) / total for name in names}

    def _values(self, name: str) -> list[float]:
        """The values of a field in all steps that have it; other programs may have written records."""
        return [record[name] for record in self.records if "loss" in record and name in record]

    def _add(self, **record) -> None:
        self.records.append(record)
        if ranks.is_first():
            self._written.add(strict_json.dumps(record))
        self._display.show(record)


def _with_nan(record: dict) -> dict:
    """The record with NaN for null, since JSON has no NaN."""
    return {name: float("nan") if value is None else value for name, value in record.items()}


def _newest(own: list[dict]) -> list[dict]:
    """The longest record list of all ranks: with a disk per machine, any rank may have been rank 0."""
    last_steps = [int(row[0]) for row in ranks.table([own[-1]["step"] if own else 0])]
    furthest = last_steps.index(max(last_steps))
    return own if furthest == 0 else ranks.gathered(own if ranks.number() == furthest else None)[furthest]


def peak_memory() -> int:
    """Peak bytes of tensors on the device; on the CPU place, the peak of the process."""
    device = paddle.device.get_device()
    if device.startswith("cpu"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return paddle_release.max_memory_allocated(device)  # the default, device 0, belongs to another rank


class RecordFile:
    """A file of lines that a run appends to, starting with ``lines``. Raises OSError on failure.

    A full disk does not end the run: lines that cannot be written stay in memory until a later write
    succeeds.
    """

    def __init__(self, file: Path, lines: list[str]):
        self._file, self._pending, self._reported = file, b"", False
        with naming(file), new_file(file) as new:
            new.write_text("".join(f"{line}\n" for line in lines))

    def add(self, line: str) -> None:
        """Append ``line``, or keep it in memory if the write fails; the first failure is reported."""
        self._pending += f"{line}\n".encode()
        try:
            self.flush()
        except (OSError, UserError) as error:
            if not self._reported:
                say(f"note     {error}; missing records are written as soon as possible")
            self._reported = True

    def flush(self) -> None:
        """Write pending lines. Raises OSError with the file's name on failure, and UserError for a link."""
        if not self._pending:
            return
        with naming(self._file):
            descriptor = own_file.open_for(self._file, os.O_WRONLY | os.O_APPEND)
            try:
                while self._pending:
                    self._pending = self._pending[os.write(descriptor, self._pending) :]
            finally:
                os.close(descriptor)


def read(file: str | Path, notes: list[str] | None = None) -> list[dict]:
    """Read the records of a ``metrics.jsonl``, which a kill, a full disk or an editor may have damaged.

    A truncated last line is ignored. Other invalid lines are counted in ``notes``.
    """
    records, others = [], 0
    for line in _lines(Path(file)):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif line[-1] == "\n" and not line.isspace():
            others += 1
    if others and notes is not None:
        notes.append(f"{file}: {others} lines are not valid records and are ignored")
    return records


def _lines(file: Path) -> Iterator[str]:
    if not file.is_file():
        return
    with file.open(encoding="utf-8-sig", errors="replace", newline="\n") as lines:
        while line := lines.readline(LONGEST_LINE):
            is_whole = len(line) < LONGEST_LINE or line[-1] == "\n"
            while len(line) == LONGEST_LINE and line[-1] != "\n":
                line = lines.readline(LONGEST_LINE)
            yield line if is_whole else "\0\n"


def _record(line: str) -> dict | None:
    try:
        record = plain_json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int or record["step"] < 0:
        return None
    return record if all(_is_number(record.get(name)) for name in ("step", *NUMBERS)) else None


def _is_number(value: object) -> bool:
    """Whether ``value`` is a number; null means NaN or infinity."""
    return value is None or type(value) is float or (type(value) is int and abs(value) < LARGEST_INTEGER)


@dataclass(frozen=True)
class Utilization:
    """MFU, model FLOPs utilization: the achieved fraction of the devices' peak throughput.

        MFU = tokens/s * F / (devices * peak)

    with F from ``llm_npu.models.flops``. Source: PaLM, arXiv 2204.02311, appendix B.

    Attributes:
        per_token: F, FLOPs per token.
        peak: FLOP/s of one device.
        source: The origin of ``peak``.
    """

    per_token: float
    peak: float
    devices: int
    source: str

    def of(self, tokens_per_s: float) -> float:
        """The MFU at ``tokens_per_s`` of the whole run."""
        return tokens_per_s * self.per_token / (self.devices * self.peak)

    def __str__(self) -> str:
        return f"{self.peak / TERA:.4g} TFLOP/s per device, {self.source}"


def utilization(run: RunConfig, model) -> Utilization | None:
    """The `Utilization` for ``--peak_tflops``, or None. Collective: each rank measures its device.

    Attention is counted only for full causal rows (``--packing stream``).
    """
    peak_tflops = run.training.peak_tflops
    if peak_tflops is None:
        return None
    whole_rows = run.data.packing == "stream" and not run.data.reset_attention_mask
    dtype = "bfloat16" if run.training.bf16 else "float16" if run.training.fp16 else "float32"
    tflops = stated(peak_tflops, dtype)
    if tflops is None:
        peak = float(ranks.table([measured_flops(dtype)]).mean())
        source = (
            f"measured: {PRODUCT_SIZE} x {PRODUCT_SIZE} products in {dtype} on {paddle.device.get_device()}"
        )
    else:
        peak = tflops * TERA
        source = f"{peak_tflops}, as published" if peak_tflops in PEAKS else "as given"
    trained = None
    if run.model.finetuning_type == "lora":
        trained = sum(parameter.size for parameter in model.parameters() if not parameter.stop_gradient)
    per_token = flops_per_token(model.config, run.data.max_seq_length if whole_rows else 0, trained)
    return Utilization(per_token, peak, ranks.count(), source)


def measured_flops(dtype: str) -> float:
    """FLOP/s of matrix products in ``dtype`` on this rank's device, in the best round."""
    numbers = np.random.default_rng(0)  # not Paddle's generator, whose state belongs to the run
    left, right = (
        paddle.to_tensor(numbers.random((PRODUCT_SIZE, PRODUCT_SIZE), np.float32)).astype(dtype)
        for _ in range(2)
    )
    best = float("inf")
    for _ in range(PRODUCT_ROUNDS):
        begin = time.perf_counter()
        float(paddle.matmul(left, right)[0, 0].astype("float32"))  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2 * PRODUCT_SIZE**3 / best


@dataclass(frozen=True)
class Baseline:
    """The loss of an untrained predictor.

    Attributes:
        name: The predictor that has this loss.
        formula: The loss as a formula.
        unit: The unit of all losses.
    """

    loss: float
    name: str
    formula: str
    unit: str


def plot_loss(recorder: Recorder, baseline: Baseline, file: str | Path) -> None:
    """Write a PNG with training loss, evaluation loss and the baseline over the steps."""
    figure, axes = _subplots(figsize=(8, 4.5))
    axes.plot(*zip(*recorder.losses(), strict=True), linewidth=1, label="training")
    if evaluations := recorder.eval_losses():
        axes.plot(*zip(*evaluations, strict=True), marker="o", label="evaluation (held-out text)")
    axes.axhline(baseline.loss, ls="--", color="grey", lw=1, label=f"{baseline.name}: {baseline.formula}")
    axes.set(xlabel="step", ylabel=f"loss ({baseline.unit})", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    _save(figure, file)


def plot_run(recorder: Recorder, file: str | Path) -> None:
    """Write a PNG with speed, gradient norm, stall fractions and memory over the steps."""
    records = [record for record in recorder.records if record.get("step_s", 0.0) > 0]
    figure, ((speed, norm), (waits, memory)) = _subplots(2, 2, figsize=(11, 6.5), sharex=True)
    _line(speed, records, "tokens_per_s")
    speed.set(ylabel="tokens/s", ylim=(0, None))
    if recorder.utilization:  # the same curve on another scale
        to_mfu = recorder.utilization.of(1.0)
        percent = speed.secondary_yaxis(
            "right", functions=(lambda y: 100 * to_mfu * y, lambda y: y / (100 * to_mfu))
        )
        percent.set_ylabel("MFU (%)")
    _line(norm, records, "grad_norm")
    norm.set(ylabel="gradient norm", ylim=(0, None))
    for name, label in (
        ("data", "waiting for data"),
        ("communication", "communicating"),
        ("exposed", "waiting for communication"),
    ):
        _line(waits, records, f"{name}_s", lambda record: 100 / record["step_s"], label)
    waits.set(ylabel="fraction of the step (%)", xlabel="step", ylim=(0, None))
    if waits.lines:
        waits.legend()
    _line(memory, records, "peak_memory", lambda record: 1 / MIB)
    memory.set(ylabel="peak memory per device (MiB)", xlabel="step", ylim=(0, None))
    for axes in (speed, norm, waits, memory):
        axes.grid(alpha=0.3)
    _save(figure, file)


def _line(axes, records: list[dict], name: str, scale=lambda record: 1.0, label: str | None = None) -> None:
    points = [(record["step"], record[name] * scale(record)) for record in records if name in record]
    if points:
        axes.plot(*zip(*points, strict=True), linewidth=1, label=label)


def _subplots(*grid: int, **options):
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot  # imported late: it is slow, and most processes plot nothing

    return pyplot.subplots(*grid, dpi=120, **options)


def _save(figure, file: str | Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    with naming(Path(file)), new_file(Path(file)) as new:
        figure.savefig(new, format="png")
    pyplot.close(figure)
