"""The trainer of ``llm_npu.trainer`` on a mesh: ``--enable_auto_parallel`` of the training script."""

from __future__ import annotations

import numpy as np
import paddle
from paddlenlp.trainer import TrainerCallback

from llm_npu.console import say
from llm_npu.parallel.communication import collectives_sent
from llm_npu.parallel.explain import communication, explain
from llm_npu.parallel.mesh import Degrees
from llm_npu.parallel.session import Session, Settings
from llm_npu.trainer import PretrainTrainer
from paddle_fused import virtual_npu

STAGES = {"stage1": 1, "stage2": 2, "stage3": 3}


def settings_of(arguments) -> Settings:
    """From PaddleNLP's arguments, under the names that its AutoTrainer reads; dp includes sharding."""
    stages = [STAGES[option.value] for option in arguments.sharding if option.value in STAGES]
    return Settings(
        Degrees(dp=arguments.dataset_world_size, mp=max(arguments.tensor_parallel_degree, 1)),
        sequence_parallel=arguments.sequence_parallel,
        sharding=stages[0] if stages else 0,
        recompute=arguments.recompute,
        accumulation=arguments.gradient_accumulation_steps,
    )


class FirstStep(TrainerCallback):
    """Says what the first step has sent, its optimizer included."""

    def __init__(self, session: Session):
        self.session = session

    def on_optimizer_end(self, args, state, control, **kwargs):
        if self.session is not None:
            say("\n".join(communication(self.session, collectives_sent())))
        self.session = None


def for_one_device(config):
    """The model's configuration, for PaddleNLP's layers as they are on one device; the plan splits them.

    Projections stay apart: of gate and up in one weight each process would need columns from both halves.
    """
    config.tensor_parallel_degree = config.pipeline_parallel_degree = 1
    config.sequence_parallel = config.fuse_attention_qkv = config.fuse_attention_ffn = False
    return config


class ParallelTrainer(PretrainTrainer):
    """Data, schedule, records and checkpoints are those of the other runs; the model is split by its plan.

    It trains in dygraph. ``explains``: prints the placements before the first step, and what it has sent
    after it.
    """

    def __init__(self, *args, explains: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.explains = explains
        self.session: Session | None = None
        self.resumes: str | None = None

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
            self._load_optimizer_and_scheduler(self.resumes)
            if self.explains:
                say(explain(self.session))
                self.add_callback(FirstStep(self.session))
        return self.optimizer

    def training_step(self, model, inputs, step_control=0):
        if step_control == 0:
            self.micro_batch_losses, self.step_tokens = [], 0
            virtual_npu.reset_transfers()
        self.step_tokens += inputs["num_tokens"]
        parts = self.args.gradient_accumulation_steps
        loss = self.session.backward(np.asarray(inputs["input_ids"]), np.asarray(inputs["labels"]))
        if step_control + 1 == parts:
            self.session.finish_gradients()
        loss = paddle.to_tensor(loss)
        self.micro_batch_losses.append(loss)
        return loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        loss = self.session.evaluate(np.asarray(inputs["input_ids"]), np.asarray(inputs["labels"]))
        return paddle.to_tensor(loss), None, None
