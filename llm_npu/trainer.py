"""PaddleNLP's Trainer for pre-training, with checkpoints that are atomic and resume bit for bit.

What is PaddleNLP's stays PaddleNLP's: mixed precision, master weights and gradients, accumulation, clipping,
recompute, evaluation. Replaced are the parts where an interrupted run would not continue as it was:

- the sampler walks the samples in order, from the number already consumed; the data is shuffled by the seed;
- a checkpoint is written by ``llm_npu.checkpoint`` and holds the weights in the Hugging Face layout, the
  optimizer with its fp32 master weights, the schedule, the loss scale and the random number generators.
"""

from __future__ import annotations

import math
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import paddle
from paddle.framework import core
from paddlenlp.trainer import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from paddlenlp.transformers import CosineAnnealingWithWarmupDecay, LinearAnnealingWithWarmupDecay
from paddlenlp.utils.batch_sampler import DistributedBatchSampler

from llm_npu import chat_template, checkpoint, lora, resume
from llm_npu import model as models
from llm_npu.config import DataArguments, RunConfig
from llm_npu.console import is_ours
from llm_npu.data import Datasets, FirstSamples, ShuffledSamples
from llm_npu.data.collate import Collator
from llm_npu.metrics import Recorder

SCHEDULES = {"cosine": CosineAnnealingWithWarmupDecay, "linear": LinearAnnealingWithWarmupDecay}


def set_max_steps(arguments, samples: Datasets) -> None:
    """Put the steps that ``num_train_epochs`` are in place of ``max_steps`` -1."""
    if arguments.max_steps == -1:
        steps = arguments.num_train_epochs * len(samples.train) / _samples_per_step(arguments)
        arguments.max_steps = max(1, int(steps))


def pretraining(
    run: RunConfig,
    model,
    tokenizer,
    samples: Datasets,
    recorder: Recorder,
    settings: dict[str, dict],
    mask: str = "dense",
) -> PretrainTrainer:
    """The trainer of a run, over the shuffled training part of ``samples``.

    ``settings`` (of ``llm_npu.resume``) are stored in the checkpoints. ``mask`` is the form of the masks that
    the model takes: "object" when its attention is fused, else "dense" (``llm_npu.data.collate``).
    """
    arguments = run.training
    per_step = _samples_per_step(arguments)
    drawn = arguments.max_steps * per_step
    return PretrainTrainer(
        recorder,
        settings,
        model=model,
        args=arguments,
        train_dataset=ShuffledSamples(samples.train, drawn, arguments.seed, per_step),
        eval_dataset=_evaluated(samples, arguments) if arguments.do_eval else None,
        data_collator=_collator(run.data, tokenizer, mask),
        tokenizer=tokenizer,
    )


def _samples_per_step(arguments) -> int:
    return arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.dataset_world_size


def _evaluated(samples: Datasets, arguments) -> FirstSamples:
    batches, per_batch = arguments.max_evaluate_steps, arguments.per_device_eval_batch_size
    most = batches * per_batch * arguments.dataset_world_size if batches > 0 else len(samples.valid)
    return FirstSamples(samples.valid, most)


def _collator(data: DataArguments, tokenizer, mask: str) -> Collator:
    pad = tokenizer.pad_token_id
    return Collator(
        padding=data.padding,
        length=data.max_seq_length if data.padding == "max_length" else None,
        pad_token_id=tokenizer.eos_token_id if pad is None else pad,
        mask=mask,
    )


class PretrainTrainer(Trainer):
    """Trains a causal language model on the batches that ``llm_npu.data.collate`` makes.

    ``train_dataset[i]`` must depend on i (and a seed) alone. Every label of an optimizer step counts as much,
    in whichever micro batch it is (``llm_npu.data.order``). ``recorder`` collects what the run measures, and
    shows it. ``settings`` become the ``run.json`` of every checkpoint. ``stop.received`` is the signal that
    ended the training early, or None.
    """

    def __init__(self, recorder: Recorder, settings: dict[str, dict], **kwargs):
        self.recorder = recorder
        self.settings = settings
        self.stop = StopOnSignal()
        self.micro_batch_losses: list[paddle.Tensor] = []
        self.step_tokens = 0
        callbacks = [LastStep(), self.stop, recorder]
        super().__init__(callbacks=callbacks, **kwargs)
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.args.disable_tqdm = True  # PaddleNLP's other bars: the recorder shows the run
        recorder.step_loss = self.step_loss
        recorder.step_tokens = lambda: self.step_tokens * self.args.dataset_world_size

    def train(self, resume_from_checkpoint: str | None = None, **kwargs):
        """As the stock ``train``; ends with a checkpoint of the last step, and with the merged model of LoRA.

        ValueError, OSError: as their text says. What Paddle raises of these kinds is a fault of the program,
        and comes as the cause of a RuntimeError.
        """
        self.add_callback(Abandon(resume.continues(resume_from_checkpoint, self.args.output_dir)))
        try:
            result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            last = checkpoint.path_of(self.args.output_dir, self.state.global_step)
            if last not in checkpoint.complete(self.args.output_dir):  # its step was skipped
                self._save_checkpoint(self.model)
            if isinstance(self.model, lora.LoRAModel) and not self.stop.received:
                lora.export(self.model, self.tokenizer, Path(self.args.output_dir) / lora.MERGED)
        except (ValueError, OSError) as error:
            if is_ours(error):
                raise
            raise RuntimeError(f"The training failed after step {self.state.global_step}.") from error
        finally:
            self.stop.restore()
            self.recorder.end()
        return result

    def training_step(self, model, inputs, step_control=0):
        if step_control == 0:
            self.micro_batch_losses, self.step_tokens = [], 0
        self.step_tokens += inputs["num_tokens"]
        loss = super().training_step(model, inputs, step_control=step_control)
        self.micro_batch_losses.append(loss)
        return loss

    def compute_loss(self, model, inputs, return_outputs=False):
        """The mean loss of a batch times the weight that its labels have in the step, or the evaluation."""
        del inputs["num_tokens"]
        weight = inputs.pop("loss_weight") / self._mean_weight(len(inputs["input_ids"]), model.training)
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        loss = loss if weight == 1.0 else loss * weight
        return (loss, outputs) if return_outputs else loss

    def _mean_weight(self, rows: int, training: bool) -> float:
        """What the weights of a batch would add up to, if all samples had as many labels.

        PaddleNLP averages the losses of evaluation by ``rows``, of which joined samples have one.
        """
        if training:
            return self.args.per_device_train_batch_size
        if self.data_collator.padding != "none":
            return rows
        samples, per_batch = len(self.eval_dataset), self.args.per_device_eval_batch_size
        return samples / math.ceil(samples / per_batch)

    def step_loss(self) -> float:
        """The loss of the last optimizer step: the mean over its micro batches, in nats per token."""
        return sum(float(loss) for loss in self.micro_batch_losses)  # each is divided by their number already

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

    # The files that PaddleNLP reads back itself have PaddleNLP's names.

    def _save_checkpoint(self, model, metrics=None):
        step = self.state.global_step
        with checkpoint.writing(self.args.output_dir, step) as folder:
            models.save_weights(self.model, folder)
            resume.write(self.settings, folder)
            chat_template.save(self.tokenizer, folder)
            self.state.save_to_json(str(folder / "trainer_state.json"))
            paddle.save(self.optimizer.state_dict(), str(folder / "optimizer.pdopt"))
            paddle.save(self.lr_scheduler.state_dict(), str(folder / "scheduler.pdparams"))
            if self.do_grad_scaling:
                paddle.save(self.scaler.state_dict(), str(folder / "scaler.pdparams"))
            paddle.save(random_state(), str(folder / "rng_state.pth"))
        checkpoint.prune(self.args.output_dir, self.args.save_total_limit)
        self.recorder.saved(step)

    def _load_from_checkpoint(self, resume_from_checkpoint=None):
        if resume_from_checkpoint is not None:
            models.load_weights(self.model, resume_from_checkpoint)

    def _load_rng_state(self, checkpoint):
        if checkpoint is not None:
            set_random_state(paddle.load(str(Path(checkpoint) / "rng_state.pth"), return_numpy=True))


class LastStep(TrainerCallback):
    """Logs, evaluates and saves at the last step too, when it is no multiple of the intervals."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            control.should_log = True
            control.should_evaluate = args.do_eval
            control.should_save = True


class Abandon(TrainerCallback):
    """Removes, as the training begins, the checkpoints that it does not continue from, and a merged model.

    ``continued``: those up to the step that it begins at are its own.
    """

    def __init__(self, continued: bool):
        self.continued = continued

    def on_train_begin(self, args, state, control, **kwargs):
        checkpoint.clear(args.output_dir, above=state.global_step if self.continued else -1)
        shutil.rmtree(Path(args.output_dir) / lora.MERGED, ignore_errors=True)


class StopOnSignal(TrainerCallback):
    """Ends the training after the current step, with a checkpoint, when Ctrl-C or SIGTERM arrives.

    The signals are caught between ``on_train_begin`` and ``restore``. A second one ends the process at
    once; the checkpoints stay whole even then.
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)

    def on_step_end(self, args, state, control, **kwargs):
        if self.received:
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True

    def restore(self) -> None:
        """Leave the signals to whom they belonged before the training."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number, frame):
        self.received = signal.Signals(number)
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)


def random_state() -> dict:
    """The state of every generator that a step may draw from: Python's, numpy's, the host's, the device's."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "host": core.default_cpu_generator().get_state(),
        "device": _device_generator().get_state(),
    }


def set_random_state(state: dict) -> None:
    """Put back what ``random_state`` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    core.default_cpu_generator().set_state(state["host"])
    _device_generator().set_state(state["device"])


def _device_generator():
    place = paddle.framework._current_expected_place_()
    if isinstance(place, paddle.CustomPlace):
        return core.default_custom_device_generator(place)
    return core.default_cpu_generator()
