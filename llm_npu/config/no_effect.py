"""Reasons why flags have no effect, shared by several flags.

PaddleNLP's scripts silently accept many flags that change nothing: flags for another device, for another
precision, or for parallelism that is off. Here each flag names its reasons; the run prints those that hold.
"""

from __future__ import annotations

from argparse import Namespace

from llm_npu.models.families import FAMILIES, Family
from llm_npu.models.presets import model_type

from .flag import NoEffect


def family(run: Namespace) -> Family:
    """The family of the run's model."""
    return FAMILIES[model_type(run.model_name_or_path)]


def sharding_degree(run: Namespace) -> int:
    """The processes of a sharding group: as given, else all that the other degrees leave."""
    others = max(run.tensor_parallel_degree, 1) * max(run.pipeline_parallel_degree, 1)
    given = max(run.sharding_degree, run.sharding_parallel_degree)
    return given if given > 0 else run.processes // others


def unless_schedule(*names: str) -> NoEffect:
    """The reason of a flag that only these learning rate schedules read."""
    return NoEffect(
        f"--lr_scheduler_type is not {' or '.join(names)}", lambda run: run.lr_scheduler_type not in names
    )


# Parallelism
ONE_PROCESS = NoEffect("the run has one process (--nproc starts more)", lambda run: run.processes == 1)
NO_TENSOR_PARALLEL = (
    ONE_PROCESS,
    NoEffect("--tensor_parallel_degree is 1", lambda run: run.tensor_parallel_degree <= 1),
)
NO_PIPELINE = (
    ONE_PROCESS,
    NoEffect("--pipeline_parallel_degree is 1", lambda run: run.pipeline_parallel_degree <= 1),
)
NOT_SHARDED = (ONE_PROCESS, NoEffect("--sharding is not given", lambda run: not run.sharding))
ONE_SHARD = (
    ONE_PROCESS,
    NoEffect("the other degrees leave no processes to shard over", lambda run: sharding_degree(run) == 1),
)

# Device and model
CUDA = NoEffect("it selects a CUDA kernel, which neither an NPU nor the CPU has")
NO_HIDDEN_DROPOUT = NoEffect("only GPT reads it", lambda run: not family(run).has_hidden_dropout)
NO_DROPPED_TOKENS = NoEffect("experts have no capacity limit, so no token is dropped")
SEPARATE_PROJECTIONS = (
    NoEffect("--enable_auto_parallel keeps these projections separate", lambda run: run.enable_auto_parallel),
    NoEffect(
        "the library leaves no choice of these projections in this model family",
        lambda run: not family(run).fuses_projections,
    ),
)
NOT_FUSED = NoEffect("--disable_fused_options switches it off", lambda run: run.disable_fused_options)
NO_EXPERTS = NoEffect("the model has no experts", lambda run: not family(run).experts)
NO_LAYER_NORM = NoEffect(
    "the model has no LayerNorm after dropout", lambda run: "dropout_add_layer_norm" not in family(run).layers
)
NO_GEGLU = NoEffect("the model has no GeGLU", lambda run: "geglu" not in family(run).layers)
NOT_DPO = NoEffect("--stage is not dpo", lambda run: run.stage != "dpo")
DPO_READS_LOGITS = NoEffect("--stage dpo reads the logits of its pairs", lambda run: run.stage == "dpo")
NOT_LORA = NoEffect("--finetuning_type is not lora", lambda run: run.finetuning_type != "lora")

# Precision
FLOAT32 = NoEffect(
    "the run computes in float32 (neither --bf16 nor --fp16)", lambda run: not (run.bf16 or run.fp16)
)

# Schedule
CONSTANT = NoEffect("the constant schedule has no warmup", lambda run: run.lr_scheduler_type == "constant")
HALF_COSINE = NoEffect("the cosine schedule with a minimum has half a wave")

# Evaluation and checkpoints
NO_EVALUATION = NoEffect(
    "evaluation is off (--evaluation_strategy no)", lambda run: run.evaluation_strategy == "no"
)
NO_CHECKPOINTS = NoEffect(
    "periodic checkpoints are off (--save_strategy no)", lambda run: run.save_strategy == "no"
)
NEWEST_KEPT = NoEffect("the newest checkpoints are kept, and the final model is the last one")
WHOLE_CHECKPOINTS = NoEffect("checkpoints are written whole, in Hugging Face's layout")

# Recompute
NO_RECOMPUTE = NoEffect("--recompute is off", lambda run: not run.recompute)

# Data
OWN_SAMPLES = NoEffect("every process reads its own samples, from memory-mapped files")
IDS_AND_LABELS = NoEffect("a sample holds input_ids and labels only")
MEMORY_MAPPED = NoEffect("samples are cut from memory-mapped files, in the training process")

# Other services
NO_WANDB = NoEffect(
    "--report_to does not name wandb", lambda run: not {"wandb", "all"} & set(run.report_to or [])
)
PADDLE_CLOUD = NoEffect("it belongs to PaddleCloud")
ONLY_TRAINS = NoEffect("this script trains; it neither exports nor predicts")
