"""The trainer on a process mesh: ``--enable_auto_parallel`` of the training script."""

from __future__ import annotations

import numpy as np
import paddle

import virtual_npu
from llm_npu.core.console import say
from llm_npu.parallel.communication import collectives_sent
from llm_npu.parallel.explain import communication, explain
from llm_npu.parallel.mesh import Degrees
from llm_npu.parallel.session import Session, Settings
from llm_npu.patches.gradients import GradientNorm
from llm_npu.training.nonfinite import bad_numbers
from llm_npu.training.trainer import PretrainTrainer
from llm_npu.training.upstream_trainer import TrainerCallback

STAGES = {"stage1": 1, "stage2": 2, "stage3": 3}


def settings_of(arguments) -> Settings:
    """Settings from the arguments that PaddleNLP's AutoTrainer reads; dp includes sharding."""
    stages = [STAGES[option.value] for option in arguments.sharding if option.value in STAGES]
    return Settings(
        Degrees(
            dp=arguments.dataset_world_size,
            tp=max(arguments.tensor_parallel_degree, 1),
            pp=max(arguments.pipeline_parallel_degree, 1),
        ),
        sequence_parallel=arguments.sequence_parallel,
        sharding=stages[0] if stages else 0,
        recompute=arguments.recompute,
        accumulation=arguments.gradient_accumulation_steps,
        to_static=arguments.to_static,
    )


class ExplainFirstStep(TrainerCallback):
    """Prints the communication of the first step, including the optimizer."""

    def __init__(self, session: Session):
        self.session = session

    def on_optimizer_end(self, args, state, control, **kwargs):
        if self.session is not None:
            sent = [*collectives_sent(), *self.session.sent_to_stages]
            say("\n".join(communication(self.session, sent)))
        self.session = None


def for_one_device(config):
    """The model's configuration for PaddleNLP's single-device layers, which the plan shards.

    Projections stay separate, because with fused gate and up each process would need columns of both halves.
    """
    config.tensor_parallel_degree = config.pipeline_parallel_degree = 1
    config.sequence_parallel = config.fuse_attention_qkv = config.fuse_attention_ffn = False
    return config


def _nothing(*_arguments, **_options) -> None:
    pass


class ParallelTrainer(PretrainTrainer):
    """Shards the model by a plan; data, schedule, records and checkpoints are the same as in other runs.

    With ``--explain_parallel``, prints the placements before the first step and its communication after it.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.session: Session | None = None
        self.resumes: str | None = None
        self.micro_batches: list[
            tuple[np.ndarray, np.ndarray]
        ] = []  # micro batches of the step, until it is complete

    def train(self, resume_from_checkpoint: str | None = None, **kwargs):
        self.resumes = resume_from_checkpoint
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def create_optimizer(self, lr_scheduler=None):
        if self.session is None:
            create = super().create_optimizer
            self.session = Session(
                self.model, settings_of(self.args), lambda _parameters: create(lr_scheduler)
            )
            self.optimizer = self.session.optimizer
            if self.session.settings.to_static:
                self.gradient_norm = self.session.program(*self._first_rows()).norm
                # The program does both. (Paddle's wrapper forwards other attributes.)
                vars(self.optimizer).update(step=_nothing, clear_grad=_nothing)
            else:
                self.gradient_norm = GradientNorm(self.optimizer, self.guard.check_norm)
                self.guard.around(self.optimizer)
            self._load_optimizer_and_scheduler(self.resumes)
            if self.args.explain_parallel:
                say(explain(self.session))
                self.add_callback(ExplainFirstStep(self.session))
        return self.optimizer

    def training_step(self, model, inputs, step_control=0):
        if step_control == 0:
            self.micro_batch_losses, self.step_tokens, self.micro_batches = [], 0, []
            virtual_npu.reset_transfers()
        self.step_tokens += inputs["num_tokens"]
        self.micro_batches.append((np.asarray(inputs["input_ids"]), np.asarray(inputs["labels"])))
        if step_control + 1 < self.args.gradient_accumulation_steps:
            return paddle.zeros([])
        rows = [np.concatenate(arrays) for arrays in zip(*self.micro_batches, strict=True)]
        take = self.session.step if self.session.settings.to_static else self.session.backward
        loss = paddle.to_tensor(take(*rows))
        self.micro_batch_losses.append(loss)
        return loss

    def _wrap_amp_model(self, args, model):
        """Cast the weights to low precision; PaddleNLP's other steps are specific to its own parallelism."""
        self.amp_dtype, args.amp_master_grad = "bfloat16", False  # the session's gradients are in float32
        paddle.amp.decorate(
            model, level="O2", dtype=self.amp_dtype, excluded_layers=self._decorate_exclude_layers(model)
        )

    def _bad_numbers(self) -> str:
        if self.session.settings.degrees.pp > 1:
            return bad_numbers(self.model, None)
        input_ids, _ = self.session.batch(*self.micro_batches[-1])
        return bad_numbers(self.model, {"input_ids": input_ids})

    def _first_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The micro batches of a step, for their shapes."""
        count = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        batch = self.data_collator([self.train_dataset[index] for index in range(count)])
        return np.asarray(batch["input_ids"]), np.asarray(batch["labels"])

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        loss = self.session.evaluate(np.asarray(inputs["input_ids"]), np.asarray(inputs["labels"]))
        return paddle.to_tensor(loss), None, None
