"""PaddleNLP's training arguments with this script's defaults. Importing this file imports paddlenlp."""

# ruff: noqa: UP045  (PaddleNLP's argument parser understands Optional[X], not X | None)

from dataclasses import dataclass, field
from typing import Optional

from paddlenlp.trainer import PdArgumentParser, TrainingArguments
from paddlenlp.transformers.configuration_utils import llmmetaclass

from .early import OUTPUT_DIR


@dataclass
@llmmetaclass  # adds what PaddleNLP's models read: use_fused_linear, recompute_granularity, ...
class PretrainArguments(TrainingArguments):
    """PaddleNLP's ``TrainingArguments``; these fields have other defaults or are its pre-training script's.

    Schedule, with s the step, w the warmup steps, d ``decay_steps``, M and m the highest and lowest rate:

        s <= w    M s / w
        s <= d    m + (M - m) (1 + cos(pi (s - w) / (d - w))) / 2        cosine
                  m + (M - m) (1 - (s - w) / (d - w))                    linear
        s >  d    m
    """

    output_dir: str = field(default=OUTPUT_DIR, metadata={"help": "Checkpoints, metrics and the loss curve."})
    device: str = field(
        default="npu",
        metadata={
            "help": "npu (a card if there is one, else virtual), npu:N, virtual_npu, virtual_npu:N, "
            "npu:card, cpu."
        },
    )
    nproc: Optional[int] = field(
        default=None,
        metadata={"help": "Processes to start, one for each device of this machine; by default this one."},
    )
    max_restarts: int = field(
        default=0,
        metadata={
            "help": "With --nproc and --resume_from_checkpoint auto: how often all processes may start again "
            "when one was killed or stopped, or has failed."
        },
    )
    overlap: Optional[str] = field(
        default=None,
        metadata={
            "help": "Tensor parallel layers compute while they communicate: auto (a planner chooses for each "
            "shape), pipelined:CHUNKS, mc2 or serial; by default they are fleet's own."
        },
    )
    do_train: bool = field(default=True, metadata={"help": "Train."})
    do_eval: bool = field(default=True, metadata={"help": "Evaluate on the validation part of the data."})
    evaluation_strategy: str = field(default="steps", metadata={"help": "no or steps."})

    max_steps: int = field(
        default=200, metadata={"help": "Optimizer steps; -1: as many as num_train_epochs are."}
    )
    per_device_train_batch_size: int = field(
        default=8, metadata={"help": "Samples per device and micro batch."}
    )
    per_device_eval_batch_size: int = field(default=4, metadata={"help": "Samples per device in evaluation."})
    max_evaluate_steps: int = field(default=-1, metadata={"help": "Batches of one evaluation; -1: all."})
    learning_rate: float = field(default=2e-3, metadata={"help": "The highest learning rate."})
    min_learning_rate: float = field(
        default=2e-4, metadata={"help": "Rate after decay_steps; by default learning_rate / 10."}
    )
    warmup_steps: int = field(
        default=0, metadata={"help": "Steps of linear warmup; by default warmup_ratio of max_steps."}
    )
    warmup_ratio: float = field(default=0.1, metadata={"help": "Steps of linear warmup / max_steps."})
    decay_steps: Optional[int] = field(
        default=None, metadata={"help": "Step at which min_learning_rate is reached; by default max_steps."}
    )
    resume_from_checkpoint: Optional[str] = field(
        default=None,
        metadata={
            "help": "A checkpoint's folder; without one, the newest in output_dir; auto: the newest, "
            "or step 0 if there is none."
        },
    )
    trust_checkpoint: bool = field(
        default=False,
        metadata={
            "help": "Unpickle what earlier releases wrote into the checkpoint that is resumed, whatever code "
            "stands in it. Without it, plain data are read and anything else is refused."
        },
    )
    lr_scheduler_type: str = field(
        default="cosine",
        metadata={"help": "cosine, linear, constant, constant_with_warmup or polynomial."},
    )
    weight_decay: float = field(default=0.1, metadata={"help": "Weight decay of AdamW."})
    adam_beta2: float = field(default=0.95, metadata={"help": "Second beta of AdamW."})

    bf16: bool = field(default=True, metadata={"help": "Train in bfloat16 (off when --fp16 is given)."})
    fp16_opt_level: str = field(
        default="O2",
        metadata={"help": "O1: autocast per operator; O2: low-precision weights with fp32 master weights."},
    )
    amp_master_grad: bool = field(default=True, metadata={"help": "With O2, gradients in fp32."})
    # PaddleNLP's own fused paths are off. No annotation, no argument: the switches of FusedArguments have the
    # names.
    use_flash_attention = False
    use_fused_rms_norm = False
    use_fused_rope = False
    pipeline_schedule_mode = "1F1B"  # PaddleNLP reads it with --enable_auto_parallel; it is not an argument
    enable_linear_fused_grad_add: bool = field(
        default=False, metadata={"help": "PaddleNLP's switch for a CUDA kernel of nn.Linear's backward."}
    )

    nonfinite: str = field(
        default="stop",
        metadata={
            "help": "What becomes of a step whose loss or gradients are NaN or infinite: stop or skip. With "
            "--fp16 such steps are skipped anyway, and the loss scale is lowered."
        },
    )
    check_nan_inf: bool = field(
        default=False,
        metadata={
            "help": "Look at the results of every operator, and stop at the first NaN or infinity with the "
            "layer and the operator named. Slow. On a card: at those of every layer."
        },
    )
    compare_with: Optional[str] = field(
        default=None,
        metadata={
            "help": "Before the first step, run it both ways and say in which layer they part by more than "
            "rounding. composed: the fused operators computed by plain Paddle; stock: PaddleNLP's own layers."
        },
    )
    dump_tensors: Optional[str] = field(
        default=None,
        metadata={
            "help": "Write the outputs of all layers and all gradients of these steps, such as 1 or 1:3, "
            "into <output_dir>/tensors, for python -m llm_npu.numerics compare."
        },
    )
    deterministic: bool = field(
        default=False,
        metadata={"help": "Two runs give the same bits; docs/numerics.md has the conditions."},
    )
    peak_tflops: Optional[str] = field(
        default=None,
        metadata={
            "help": "The peak of one device, to show MFU: 1e12 operations a second, a card such as "
            "ascend910b3, or measured, the matrix products that this device reaches."
        },
    )
    logging_steps: int = field(default=10, metadata={"help": "Log every so many steps."})
    eval_steps: int = field(default=100, metadata={"help": "Evaluate every so many steps."})
    save_steps: int = field(default=100, metadata={"help": "Write a checkpoint every so many steps."})
    save_total_limit: Optional[int] = field(default=2, metadata={"help": "Checkpoints to keep."})
    async_save: bool = field(
        default=False, metadata={"help": "Write checkpoints behind the training, from a copy in host memory."}
    )
    explain_parallel: bool = field(
        default=False,
        metadata={
            "help": "With --enable_auto_parallel: print where each parameter lies, and what a step sends."
        },
    )
    profile: Optional[str] = field(
        default=None,
        metadata={
            "help": "Record steps into output_dir/profile: steps=10:13 (steps 10 to 12), with "
            ",shapes ,memory ,call_sites added for more, and ,warmup=N."
        },
    )
    check_dtypes: bool = field(
        default=True,
        metadata={"help": "Look for tensors and operators whose dtype would leave a card's NPU cores."},
    )
    disable_tqdm: bool = field(default=False, metadata={"help": "No progress bar."})
    report_to: Optional[list[str]] = field(
        default_factory=list, metadata={"help": "Experiment trackers to report to; none by default."}
    )

    def __post_init__(self):
        asked = self.per_device_eval_batch_size
        if self.enable_auto_parallel and self.pipeline_parallel_degree > 1:
            # PaddleNLP sets it to this, with a warning; llm_npu.parallel takes a batch as it comes.
            self.per_device_eval_batch_size = (
                self.per_device_train_batch_size * self.gradient_accumulation_steps
            )
        super().__post_init__()
        if self.enable_auto_parallel:
            self.per_device_eval_batch_size = asked

    def to_sanitized_dict(self) -> dict:
        """For trackers. Truth values as text: VisualDL 2.5 makes integers of them, which protobuf refuses."""
        found = super().to_sanitized_dict()
        return {name: str(value) if isinstance(value, bool) else value for name, value in found.items()}


class Parser(PdArgumentParser):
    """PaddleNLP's parser of dataclasses, with ValueError in place of argparse's usage text and exit."""

    def __init__(self, dataclass_types):
        # Abbreviations would let a misspelt name pass for another argument.
        super().__init__(
            dataclass_types,
            allow_abbrev=False,
            usage="%(prog)s [FILE | --config FILE] [--name value ...]",
            epilog="FILE holds the same names, in YAML or JSON; flags override it.",
        )

    def lists(self) -> set[str]:
        """The arguments that take a list of values."""
        return {action.dest for action in self._actions if action.nargs in ("+", "*")}

    def error(self, message):
        raise ValueError(message.removeprefix("argument "))
