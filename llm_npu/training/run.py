"""A training run, with its parts in construction order.

    run = Run(arguments, early, device)
    run.attach(Overlap(), Summary(), ...)     # keeps the features that the arguments enable
    run.build()
    run.train()
    return run.report()                       # the exit code

``Run`` has the parts that every training run needs. Everything else is a ``Feature``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import paddle_fused
import virtual_npu
from llm_npu import surgery
from llm_npu.config import Early, RunConfig, layer_range
from llm_npu.core.console import Display, say
from llm_npu.data import pipeline
from llm_npu.data.collate import Collator, PairCollator
from llm_npu.device import Device
from llm_npu.models.library import names
from llm_npu.training import metrics, model, out_of_memory, resume
from llm_npu.training.activations import HostInputs
from llm_npu.training.trainer import PretrainTrainer
from virtual_npu import KernelRecord


class Feature:
    """An optional part of a run, such as a profile.

    Subclasses override these hooks. Each hook is called once, in the order below; features are called in the
    order in which they were attached.
    """

    def takes_part(self, run: Run) -> bool:
        """Whether the arguments enable the feature. Called before anything is built."""
        return True

    def configure(self, run: Run) -> None:
        """After the model's configuration is built; may change it and ``run.trainer_kind``."""

    def on_data(self, run: Run) -> None:
        """After the data and the tokenizer are read."""

    def on_model(self, run: Run) -> None:
        """After the model is built, with its weights and fused operators."""

    def on_trainer(self, run: Run) -> None:
        """After the trainer is built; may add callbacks."""

    def report(self, run: Run) -> None:
        """After the last step, unless a signal stopped the training."""


class Run:
    """One training, from its arguments to its report.

    Attributes:
        notes: Lines printed at the start of the run.
        trainer_kind: Builds the trainer.
        model, model_config, tokenizer, trainer: Set by ``build``.
        text, samples: The data source and its samples. Set by ``build``.
        fused: The report on the fused operators, None if all are off. Set by ``build``.
        switched_off: {switch: reason} for switches that the run turned off. Set by ``build``.
        ran: Operator calls (``paddle_fused.dispatch_log``). Set by ``train``.
        launches: Kernel launches of a virtual device. Set by ``train``.
        host_inputs: Moves activations with ``--offload_activations``. Set by ``build``.
    """

    def __init__(self, arguments: RunConfig, early: Early, device: Device):
        self.arguments, self.early, self.device = arguments, early, device
        self.features: list[Feature] = []
        self.notes: list[str] = []
        self.trainer_kind: Callable[..., PretrainTrainer] = PretrainTrainer
        self.fused: surgery.Report | None = None
        self.switched_off: dict[str, str] = {}
        self.ran: list = []
        self.launches: list[KernelRecord] = []
        self.host_inputs: HostInputs | None = None

    def attach(self, *features: Feature) -> None:
        """Attach the ``features`` that the arguments enable."""
        self.features += [feature for feature in features if feature.takes_part(self)]

    def build(self) -> None:
        """Build all parts of the training. Raises UserError if the run cannot be trained."""
        self.model_config = model.config_for(self.arguments)
        virtual = self.device.kind == "virtual"
        if reason := model.choose_loss(self.arguments, self.model_config, virtual):
            self.switched_off[model.LOSS_SWITCH] = reason
        for feature in self.features:
            feature.configure(self)
        self.checkpoint = resume.requested(
            self.arguments.training, self.model_config, writes=not self.device.dry
        )
        self._read_data()
        for feature in self.features:
            feature.on_data(self)
        self._make_model()
        for feature in self.features:
            feature.on_model(self)
        self.trainer = self._trainer()
        for feature in self.features:
            feature.on_trainer(self)
        if not self.device.dry:
            # Last, so that a rejected run leaves no folder behind.
            self.trainer.disks = resume.hold_folder(self.arguments.training)

    def train(self) -> None:
        """Train all steps, starting at step 0 or at the checkpoint's step."""
        paddle_fused.reset_dispatch_log()
        if self.device.kind == "virtual":
            virtual_npu.reset_kernel_record()
        try:
            self.trainer.train(resume_from_checkpoint=self.checkpoint and str(self.checkpoint))
        finally:
            if self.host_inputs is not None:
                self.host_inputs.remove()
        self.ran = paddle_fused.dispatch_log()
        if self.device.kind == "virtual":
            self.launches = virtual_npu.kernel_record()

    def report(self) -> int:
        """Print how training ended and return the exit code."""
        if signal := self.trainer.stop.received:
            step = self.trainer.state.global_step
            say(f"stopped by {signal.name} after step {step}; resume with --resume_from_checkpoint")
            return 128 + signal
        for feature in self.features:
            feature.report(self)
        return 0

    def _read_data(self) -> None:
        arguments, training = self.arguments, self.arguments.training
        vocab_size = self.model_config.vocab_size
        self.text = pipeline.find(arguments.data)
        self.tokenizer = pipeline.tokenizer_for(
            arguments.model, self.text, vocab_size, arguments.data.data_cache
        )
        self.samples = pipeline.load(
            arguments.data, self.text, self.tokenizer, vocab_size, need_valid=training.do_eval
        )
        self.notes += self.tokenizer.notes
        if training.max_steps == -1:
            steps = training.num_train_epochs * len(self.samples.train) / samples_per_step(training)
            training.max_steps = max(1, int(steps))
        self.settings = resume.settings(arguments, self.text, self.tokenizer)
        self.notes += resume.beginning(self.checkpoint, training)
        if self.checkpoint:
            self.notes += resume.changes(self.checkpoint, self.settings)

    def _make_model(self) -> None:
        with out_of_memory.advising(lambda: out_of_memory.WEIGHTS):
            self._fill_model()
        training = self.arguments.training
        if training.offload_activations is not None and training.recompute and training.device != "cpu":
            layers = range(self.model_config.num_hidden_layers)
            self.host_inputs = HostInputs(self.model, layers[layer_range(training.offload_activations)])
        switches = self.arguments.fused.of_layers()
        if any(switches.values()):
            self.fused = surgery.apply_fused_kernels(self.model, **switches)

    def _fill_model(self) -> None:
        fill = not self.checkpoint and not self.device.dry
        self.model = model.build(self.arguments, self.model_config, self.tokenizer, fill)
        if self.checkpoint:
            model.load_weights(self.model, self.checkpoint)

    def _trainer(self) -> PretrainTrainer:
        """Create the trainer on the shuffled training samples."""
        training, samples = self.arguments.training, self.samples
        per_step = samples_per_step(training)
        drawn = training.max_steps * per_step
        speed = metrics.utilization(self.arguments, self.model)
        return self.trainer_kind(
            metrics.Recorder(Display(bar=not training.disable_tqdm), speed),
            self.settings,
            fused_adamw=self.arguments.fused.switches()["use_fused_adamw"],
            model=self.model,
            args=training,
            train_dataset=pipeline.ShuffledSamples(samples.train, drawn, training.seed, per_step),
            eval_dataset=evaluation_samples(samples.valid, training) if training.do_eval else None,
            data_collator=self._collator(),
            tokenizer=self.tokenizer,
        )

    def _collator(self) -> Collator | PairCollator:
        """Create the collator. PaddleNLP's fused attention takes mask objects, upstream attention tensors."""
        data, pad = self.arguments.data, self.tokenizer.pad_token_id
        collator = Collator(
            padding=data.padding,
            length=data.max_seq_length if data.padding == "max_length" else None,
            pad_token_id=self.tokenizer.eos_token_id if pad is None else pad,
            mask=names.PACKED or ("object" if self.fused and self.fused.count("attention") else "dense"),
        )
        return PairCollator(collator) if data.stage == "dpo" else collator


def samples_per_step(training) -> int:
    """The number of samples of an optimizer step over all processes."""
    return training.train_batch_size * training.gradient_accumulation_steps * training.dataset_world_size


def evaluation_samples(samples: pipeline.Samples, arguments) -> pipeline.FirstSamples:
    """The held-out ``samples`` of one evaluation, padded to the same number of batches on all ranks."""
    batches, per_batch = arguments.max_evaluate_steps, arguments.per_device_eval_batch_size
    data_ranks = arguments.dataset_world_size
    count = min(batches * per_batch * data_ranks, len(samples)) if batches > 0 else len(samples)
    whole_batches = arguments.pipeline_parallel_degree > 1
    return pipeline.FirstSamples(samples, count, _padded_size(count, per_batch, data_ranks, whole_batches))


def _padded_size(samples: int, per_batch: int, data_ranks: int, whole_batches: bool) -> int:
    """The smallest number of samples, at least ``samples``, that gives all ranks the same number of batches.

    Some kinds of parallelism communicate in the forward pass, so every rank needs a batch. ``whole_batches``:
    the last batch must have full size, as in pipeline parallelism.
    """
    if data_ranks == 1 and not whole_batches:
        return samples
    per_round = per_batch * data_ranks
    return math.ceil(samples / per_round) * per_round
