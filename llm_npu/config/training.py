"""PaddleNLP's training arguments with this script's defaults. Importing this file imports paddlenlp."""

# ruff: noqa: UP045  (PaddleNLP's argument parser understands Optional[X], not X | None)

from dataclasses import dataclass, field
from typing import Optional

from paddlenlp.trainer import TrainingArguments
from paddlenlp.transformers.configuration_utils import llmmetaclass


@dataclass
@llmmetaclass  # adds use_fused_linear, recompute_granularity, ... : what PaddleNLP's models read
class PretrainArguments(TrainingArguments):
    """PaddleNLP's ``TrainingArguments``; the fields below have other defaults, or are its pre-training script's.

    Schedule, with s the step, w ``warmup_steps`` and d ``decay_steps``:
    linear warmup from 0 to ``learning_rate`` over w steps, then a cosine (or a line) that reaches
    ``min_learning_rate`` at step d and stays there.
    """

    output_dir: str = field(default="output", metadata={"help": "Checkpoints, metrics and the loss curve."})
    device: str = field(
        default="npu",
        metadata={
            "help": "npu (a card if there is one, else the virtual NPU), npu:N, virtual_npu, npu:card, cpu."
        },
    )
    do_train: bool = field(default=True, metadata={"help": "Train."})
    do_eval: bool = field(default=True, metadata={"help": "Evaluate on the validation part of the data."})
    evaluation_strategy: str = field(default="steps", metadata={"help": "no, steps or epoch."})

    max_steps: int = field(default=200, metadata={"help": "Optimizer steps; -1: num_train_epochs decides."})
    per_device_train_batch_size: int = field(
        default=4, metadata={"help": "Samples per device and micro batch."}
    )
    per_device_eval_batch_size: int = field(default=4, metadata={"help": "Samples per device in evaluation."})
    max_evaluate_steps: int = field(default=10, metadata={"help": "Batches of one evaluation; -1: all."})
    learning_rate: float = field(default=1e-3, metadata={"help": "The highest learning rate."})
    min_learning_rate: float = field(default=1e-4, metadata={"help": "The learning rate after decay_steps."})
    warmup_steps: int = field(default=20, metadata={"help": "Steps of linear warmup."})
    decay_steps: Optional[int] = field(
        default=None, metadata={"help": "Step at which min_learning_rate is reached; by default max_steps."}
    )
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "cosine or linear (with warmup)."})
    weight_decay: float = field(default=0.1, metadata={"help": "Weight decay of AdamW."})
    adam_beta2: float = field(default=0.95, metadata={"help": "Second beta of AdamW."})

    bf16: bool = field(default=True, metadata={"help": "Train in bfloat16."})
    fp16_opt_level: str = field(
        default="O2",
        metadata={"help": "O1: autocast per operator; O2: low-precision weights, fp32 master weights."},
    )
    amp_master_grad: bool = field(default=True, metadata={"help": "With O2, gradients in fp32."})
    use_flash_attention: bool = field(
        default=True, metadata={"help": "Attention through flash_attention_npu."}
    )
    use_fused_rms_norm: bool = field(default=True, metadata={"help": "RMSNorm through rms_norm_npu."})
    use_fused_rope: bool = field(default=True, metadata={"help": "Rotary embedding through fused_rope."})
    recompute: bool = field(
        default=False,
        metadata={"help": "Compute each layer's forward again in its backward, to save memory."},
    )

    logging_steps: int = field(default=10, metadata={"help": "Log every so many steps."})
    eval_steps: int = field(default=50, metadata={"help": "Evaluate every so many steps."})
    save_steps: int = field(default=100, metadata={"help": "Write a checkpoint every so many steps."})
    save_total_limit: Optional[int] = field(default=2, metadata={"help": "Checkpoints to keep."})
    disable_tqdm: bool = field(default=False, metadata={"help": "No progress bar."})
    report_to: Optional[list[str]] = field(
        default_factory=list, metadata={"help": "Experiment trackers of PaddleNLP to report to."}
    )
