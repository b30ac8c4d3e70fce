"""PaddleNLP's Trainer with atomic checkpoints and bitwise resume.

Mixed precision, master weights and gradients, accumulation, clipping, recompute and parallelism are
PaddleNLP's. This class replaces the parts that would make a resumed run differ from an uninterrupted one, or
the losses of several ranks differ from those of a single rank:

- the sampler reads samples in order, starting at the number already consumed; the data is shuffled by seed;
- checkpoints are atomic and mesh-independent (``llm_npu.training.checkpoint.training``);
- losses are means over all labels of all ranks (``llm_npu.training.step``),
  and all ranks stop after the same step.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path

import numpy as np
import paddle

from llm_npu.core import atomic, ranks
from llm_npu.core.console import say
from llm_npu.core.errors import is_for_the_user
from llm_npu.core.ranks import Ranks
from llm_npu.models import lora
from llm_npu.patches import gradients
from llm_npu.patches.gradients import GradientNorm, ProgramNorm
from llm_npu.surgery.pending_logits import loss_only
from llm_npu.training import checkpoint, metrics, out_of_memory, resume
from llm_npu.training.checkpoint.training import MERGED, AsyncSave, Checkpointing, export_merged
from llm_npu.training.end_of_run import SaveAtLastStep, StopOnSignal
from llm_npu.training.metrics import Baseline, Recorder
from llm_npu.training.nonfinite import Guard, SkippedSteps, bad_numbers, weights_of
from llm_npu.training.step import EvaluationMean, FinishedStep, StepClock, StepSync
from llm_npu.training.upstream_trainer import (
    CosineAnnealingWithWarmupDecay,
    DistributedBatchSampler,
    EvalLoopOutput,
    LinearAnnealingWithWarmupDecay,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
)
from paddle_fused import FusedAdamW

SCHEDULES = {"cosine": CosineAnnealingWithWarmupDecay, "linear": LinearAnnealingWithWarmupDecay}


class PretrainTrainer(Checkpointing, Trainer):
    """Trains a causal language model on the batches of ``llm_npu.data.collate``.

    ``train_dataset[i]`` must depend only on i (and a seed). All labels of an optimizer step have equal
    weight, regardless of their micro batch (``llm_npu.data.pipeline``).

    Args:
        recorder: Collects and displays the metrics.
        settings: The content of ``run.json`` in every checkpoint.
        fused_adamw: Replace the library's AdamW by ``paddle_fused.FusedAdamW``.

    Attributes:
        FIGURES: Names of the values that a subclass measures in addition to the loss (`batch_figures`).
        stop: ``stop.received`` is the signal that ended the training early, or None.
    """

    FIGURES: tuple[str, ...] = ()

    def __init__(self, recorder: Recorder, settings: dict[str, dict], fused_adamw: bool = True, **kwargs):
        self.recorder = recorder
        self.fused_adamw = fused_adamw
        self.settings = settings
        self.stop = StopOnSignal()
        self.micro_batch_losses: list[paddle.Tensor | float] = []  # numbers once the host has read them
        self.step_figures = np.zeros(len(self.FIGURES))
        self.step_tokens = 0
        self.gradient_norm: GradientNorm | ProgramNorm | None = None
        self.guard = Guard(kwargs["args"].nonfinite, self._bad_numbers, say)
        self._last_inputs: dict | None = None
        self._advice = out_of_memory.of_weights
        self.clock = StepClock()
        self.skipped = SkippedSteps(lambda: recorder.step, self._loss_scale, lambda: weights_of(self.model))
        callbacks = [
            SaveAtLastStep(),
            StepSync(self._own_step, self._on_finished_step, self.FIGURES),
            self.stop,
            recorder,
            self.skipped,
            AsyncSave(self),
            self.clock,
        ]
        super().__init__(callbacks=callbacks, **kwargs)
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.args.disable_tqdm = True  # disables PaddleNLP's other bars; the recorder displays the run

    def baseline(self) -> Baseline:
        """The loss of a uniform guess."""
        return Baseline(
            math.log(self.model.config.vocab_size), "a uniform guess", "ln(vocabulary)", "nats per token"
        )

    def train(self, resume_from_checkpoint: str | None = None, **kwargs):
        """Run the upstream ``train``, then save the last step's checkpoint and, with LoRA, the merged model.

        UserError and OSError pass through. Any other ValueError is a bug and becomes the cause of a
        RuntimeError that names the step.
        """
        continued = resume.continues(resume_from_checkpoint, self.args.output_dir)
        first_of_disk = ranks.is_first() if self.disks is None else self.disks.first
        self.add_callback(RemoveStaleCheckpoints(continued, first_of_disk))
        try:
            with out_of_memory.advising(lambda: self._advice(self.args)):
                result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
                self.keep_results()
            if not self.stop.received:
                self.skipped.check_end(self.args.output_dir)
            self._report_time_limit()
        except (ValueError, OSError) as error:
            if is_for_the_user(error):
                raise
            raise RuntimeError(f"Training failed after step {self.state.global_step}.") from error
        finally:
            self.checkpoints.abandon()
            self.stop.restore()
            self.recorder.end()
        return result

    def keep_results(self) -> None:
        """Save a checkpoint of the last step, the merged model with LoRA, and all metrics."""
        self.wait_for_checkpoints()
        last = checkpoint.path_of(self.args.output_dir, self.state.global_step)
        # The first rank decides: other ranks may see an older state of a shared folder.
        if Ranks.of_run().from_first(last not in checkpoint.complete(self.args.output_dir)):  # skipped
            self._save_checkpoint(self.model)
            self.wait_for_checkpoints()
        done = self.state.global_step >= self.state.max_steps and not self.stop.received
        if lora.is_wrapped(self.model) and done and ranks.is_first():
            export_merged(self.model, self.tokenizer, Path(self.args.output_dir) / MERGED)
        with Ranks.of_run().raise_on_all_ranks():
            self.recorder.flush()

    def _report_time_limit(self) -> None:
        step, steps, minutes = self.state.global_step, self.state.max_steps, self.args.exit_duration_in_mins
        if minutes is not None and step < steps and not self.stop.received and ranks.is_first():
            say(
                f"stopped by --exit_duration_in_mins {minutes:g} after step {step} of {steps}; "
                "resume with --resume_from_checkpoint"
            )

    def _own_step(self) -> tuple[float, ...]:
        """This rank's row for the finished step (`FinishedStep.of`)."""
        # Each is already divided by the number of micro batches.
        loss = sum(map(float, self.micro_batch_losses))
        norm = self.gradient_norm.take() if self.gradient_norm else float("nan")
        memory, signal = metrics.peak_memory(), self.stop.pending or 0
        skipped = self.scaler._cache_found_inf if self.do_grad_scaling else self.guard.take_skipped()
        return (
            *(loss, self.step_tokens, memory, signal, norm, float(skipped)),
            *self.clock.take(),
            *self.step_figures,
        )

    def _loss_scale(self) -> float | None:
        return float(self.scaler._scale) if self.do_grad_scaling else None

    def _on_finished_step(self, step: FinishedStep) -> None:
        self.recorder.step = step
        self.stop.agreed = signal.Signals(step.signal) if step.signal else None

    def _wrap_amp_model(self, args, model):
        super()._wrap_amp_model(args, model)
        if self.do_grad_scaling and args.amp_master_grad:
            gradients.unscale_master_gradients(self.scaler)

    def _wrap_model(self, model, training=True):
        wrapped = super()._wrap_model(model, training)
        if training and self.gradient_norm is None:
            check = (lambda norm: norm) if self.do_grad_scaling else self.guard.check_norm
            self.gradient_norm = GradientNorm(self.optimizer, check)
            self.guard.around(self.optimizer)
        return wrapped

    def _check_loss_valid(self, loss):
        """Replacement of the upstream check, which stops only the rank with the bad loss.

        Reads the losses before the optimizer may change weights: the step's only wait for them.
        """
        self._advice = out_of_memory.of_weights  # the optimizer is next
        if self.do_grad_scaling:
            return
        self.micro_batch_losses = list(map(float, self.micro_batch_losses))
        own = sum(self.micro_batch_losses)
        self.guard.check_loss(own)
        if not math.isfinite(own):
            loss.set_value(paddle.zeros_like(loss))  # the sum over the steps since the last log

    def _bad_numbers(self) -> str:
        if self._last_inputs is None:
            return bad_numbers(self.model, None)
        with self.autocast_smart_context_manager():
            return bad_numbers(self.model, self._last_inputs)

    def training_step(self, model, inputs, step_control=0):
        self._advice = out_of_memory.of_step
        if step_control == 0:
            self.micro_batch_losses, self.step_tokens = [], 0
            self.step_figures = np.zeros(len(self.FIGURES))
        self.step_tokens += inputs["num_tokens"]
        loss = super().training_step(model, inputs, step_control=step_control)
        self.micro_batch_losses.append(loss)
        return loss

    def compute_loss(self, model, inputs, return_outputs=False):
        """The mean loss of a batch; in training, multiplied by the weight of its labels in the step.

        A batch without labels has weight 0 and gets dummy labels, because criteria return NaN without labels,
        and NaN times 0 is NaN.
        """
        del inputs["num_tokens"]
        weight = inputs.pop("loss_weight") / self.args.per_device_train_batch_size
        if not weight:
            inputs["labels"] = paddle.zeros_like(inputs["labels"])
        self._last_inputs = dict(inputs) if model.training else None
        loss, outputs = self.batch_loss(model, inputs)
        if model.training:
            if loss.stop_gradient:
                raise RuntimeError(
                    "The loss has no gradient, so this step would train nothing; check that the model has "
                    "weights to train, and that its forward pass does not detach the loss"
                )
            self.step_figures += self.batch_figures() * (weight / self.args.gradient_accumulation_steps)
            loss = loss * weight if weight != 1.0 else loss
        return (loss, outputs) if return_outputs else loss

    def batch_loss(self, model, inputs) -> tuple:
        """The mean loss of a batch and the model's outputs."""
        return super().compute_loss(model, inputs, return_outputs=True)

    def batch_figures(self) -> np.ndarray:
        """``FIGURES`` of the last batch with a computed loss; means like the loss, float64."""
        return np.zeros(0)

    def log(self, logs, **kwargs):
        """The upstream ``log`` plus the recorder's step metrics, for the trackers in --report_to."""
        record = self.recorder.records[-1] if self.recorder.records else {}
        super().log({name: value for name, value in record.items() if name != "step"} | logs, **kwargs)

    def evaluation_loop(self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
        """The mean loss over all labels. PaddleNLP averages over batches and counts padding samples twice."""
        mean = EvaluationMean()
        self._advice = out_of_memory.of_evaluation
        self.model.eval()
        for inputs in dataloader:
            weight = inputs["loss_weight"]
            mean.add(self.held_out_loss(inputs), self.batch_figures(), weight)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        self.model.train()
        names = [f"{metric_key_prefix}_{name}" for name in ("loss", *self.FIGURES)]
        figures = dict(zip(names, mean.over_all_ranks(len(names)), strict=True))
        self.recorder.evaluation = dict(figures)  # the upstream trainer adds times
        return EvalLoopOutput(
            predictions=None, label_ids=None, metrics=figures, num_samples=len(self.eval_dataset)
        )

    def held_out_loss(self, inputs) -> float:
        """The mean loss over the labels of a batch; meaningless for a batch without labels."""
        with loss_only():
            return float(self.prediction_step(self.model, inputs, prediction_loss_only=True)[0])

    def create_optimizer(self, lr_scheduler=None):
        if self.optimizer is None:
            optimizer = super().create_optimizer(lr_scheduler)
            offload = self.args.offload_optimizer
            self.optimizer = FusedAdamW.from_adamw(optimizer, offload) if self.fused_adamw else optimizer
        return self.optimizer

    def create_scheduler(self, num_training_steps: int):
        schedule = SCHEDULES.get(self.args.lr_scheduler_type.value)
        if schedule is None:
            return super().create_scheduler(num_training_steps)
        if self.lr_scheduler is None:
            self.lr_scheduler = schedule(
                max_lr=self.args.learning_rate,
                min_lr=self.args.min_learning_rate,
                warmup_step=self.args.get_warmup_steps(num_training_steps),
                decay_step=self.args.decay_steps or num_training_steps,
                last_epoch=0,
            )
        return self.lr_scheduler

    def _get_train_sampler(self):
        return DistributedBatchSampler(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            num_replicas=self.args.dataset_world_size,
            rank=self.args.dataset_rank,
            drop_last=True,
        )


class RemoveStaleCheckpoints(TrainerCallback):
    """Removes an earlier run's checkpoints and merged model when training begins.

    Args:
        continued: Keep the checkpoints up to the first step, which belong to this run.
        removes: Whether this rank removes files.
    """

    def __init__(self, continued: bool, removes: bool):
        self.continued, self.removes = continued, removes

    def on_train_begin(self, args, state, control, **kwargs):
        if self.removes:
            checkpoint.clear(args.output_dir, above=state.global_step if self.continued else -1)
            atomic.delete(Path(args.output_dir) / MERGED)
        ranks.wait()
