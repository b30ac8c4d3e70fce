"""Reasons why flags and environment variables have no effect.

PaddleNLP's scripts silently accept many flags without effect: flags for another device, for another
precision, or for parallelism that is off. Here each flag lists its reasons, some of which are shared, and the
run prints those that apply. Scripts for NPUs also export a dozen environment variables: some are read by no
library, one is misspelt, and others are read only by the libraries of a card.
"""

from __future__ import annotations

import difflib
import math
import os
from argparse import Namespace
from collections.abc import Mapping

from llm_npu.models.families import FAMILIES, Family
from llm_npu.models.library import names
from llm_npu.models.presets import model_type

from .flag import NoEffect


def family(run: Namespace) -> Family:
    """The family of the run's model."""
    return FAMILIES[model_type(run.model_name_or_path)]


def sharding_degree(run: Namespace) -> int:
    """The size of a sharding group; by default all processes that the other degrees leave."""
    degrees = (
        *(run.tensor_parallel_degree, run.pipeline_parallel_degree),
        *(run.sep_parallel_degree, run.context_parallel_degree),
    )
    others = math.prod(max(degree, 1) for degree in degrees)
    degree = max(run.sharding_degree, run.sharding_parallel_degree)
    return degree if degree > 0 else run.processes // others


def unless_schedule(*names: str) -> NoEffect:
    """The reason for a flag that only these learning rate schedules read."""
    return NoEffect(
        f"--lr_scheduler_type is not {' or '.join(names)}", lambda run: run.lr_scheduler_type not in names
    )


# Parallelism
ONE_PROCESS = NoEffect("the run has one process (--nproc starts more)", lambda run: run.processes == 1)
NO_TENSOR_PARALLEL = (
    ONE_PROCESS,
    NoEffect("--tensor_parallel_degree is 1", lambda run: run.tensor_parallel_degree <= 1),
)
NO_EXPERTS_OVER_RANKS = (
    ONE_PROCESS,
    NoEffect("--expert_parallel_degree is 1", lambda run: run.expert_parallel_degree <= 1),
)
NO_PIPELINE = (
    ONE_PROCESS,
    NoEffect("--pipeline_parallel_degree is 1", lambda run: run.pipeline_parallel_degree <= 1),
)
NOT_SHARDED = (ONE_PROCESS, NoEffect("--sharding is not set", lambda run: not run.sharding))
ONE_SHARD = (
    ONE_PROCESS,
    NoEffect("the other degrees leave no processes to shard over", lambda run: sharding_degree(run) == 1),
)

# Device and model
CPU_DEVICE = NoEffect("the device is the host", lambda run: run.device == "cpu")
CUDA = NoEffect("it selects a CUDA kernel")
NO_HIDDEN_DROPOUT = NoEffect("only GPT reads it", lambda run: not family(run).has_hidden_dropout)
NO_DROPPED_TOKENS = NoEffect("experts have no capacity limit, so no token is dropped")
SEPARATE_PROJECTIONS = (
    NoEffect("--enable_auto_parallel keeps these projections separate", lambda run: run.enable_auto_parallel),
    NoEffect(
        "the library fixes these projections for this model family",
        lambda run: not family(run).fuses_projections,
    ),
)
NOT_FUSED = NoEffect("--disable_fused_options turns it off", lambda run: run.disable_fused_options)
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
HALF_COSINE = NoEffect("the cosine schedule with a minimum always has half a wave")

# Evaluation and checkpoints
NO_EVALUATION = NoEffect(
    "evaluation is off (--evaluation_strategy no)", lambda run: run.evaluation_strategy == "no"
)
NO_CHECKPOINTS = NoEffect(
    "periodic checkpoints are off (--save_strategy no)", lambda run: run.save_strategy == "no"
)
NEWEST_KEPT = NoEffect("the newest checkpoints are kept, and the last model is the final one")
WHOLE_CHECKPOINTS = NoEffect("checkpoints contain whole tensors in Hugging Face's layout")

# Recompute
NO_RECOMPUTE = NoEffect("--recompute is off", lambda run: not run.recompute)

# Data
OWN_SAMPLES = NoEffect("every process reads its own samples, from memory-mapped files")
IDS_AND_LABELS = NoEffect("a sample holds input_ids and labels only")
MEMORY_MAPPED = NoEffect("samples are cut from memory-mapped files, in the training process")

# Other services
NO_WANDB = NoEffect(
    "--report_to does not include wandb", lambda run: not {"wandb", "all"} & set(run.report_to or [])
)
PADDLE_CLOUD = NoEffect("it belongs to PaddleCloud")
ONLY_TRAINS = NoEffect("this script only trains")

# Environment variables
# Not read by Paddle 3.3, PaddleNLP 3.0.0b4, PaddleFormers 1.2.0 or paddle-custom-npu.
UNREAD: Mapping[str, str] = {
    "MC2": f"{names.TITLE} reads FLAGS_NPU_MC2",
    "MC2_Recompute": f"{names.TITLE} reads FLAGS_NPU_MC2_Recompute",
    "MULTI_STREAM_MEMORY_REUSE": "it belongs to torch_npu",
}
# Read by a card's driver, HCCL, CANN or paddle-custom-npu.
OF_A_CARD = (
    "ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_LAUNCH_BLOCKING", "ASCEND_MAX_OP_CACHE_SIZE",
    "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_SLOG_PRINT_TO_STDOUT", "FLAGS_npu_blocking_run",
    "FLAGS_npu_check_nan_inf", "FLAGS_npu_jit_compile", "FLAGS_npu_precision_mode",
    "FLAGS_npu_reuse_event", "FLAGS_npu_scale_aclnn", "FLAGS_npu_split_aclnn",
    "FLAGS_npu_storage_format", "HCCL_ALGO", "HCCL_BUFFSIZE", "HCCL_CONNECT_TIMEOUT", "HCCL_DETERMINISTIC",
    "HCCL_EXEC_TIMEOUT", "HCCL_IF_BASE_PORT", "HCCL_IF_IP", "HCCL_INTRA_PCIE_ENABLE",
    "HCCL_INTRA_ROCE_ENABLE", "HCCL_OP_BASE_FFTS_MODE_ENABLE", "HCCL_OP_EXPANSION_MODE", "HCCL_RDMA_SL",
    "HCCL_RDMA_TC", "HCCL_SOCKET_IFNAME", "HCCL_WHITELIST_DISABLE",
)  # fmt: skip
READ_HERE = (
    "FLAGS_npu_profiling_dir",
    "FLAGS_NPU_MC2",
    "FLAGS_NPU_MC2_Recompute",
    "FLAGS_selected_npus",
    "FLAGS_npus",
)
PREFIXES = ("HCCL_", "ASCEND_", "FLAGS_NPU_", "FLAGS_npu_", "MC2")
OF_INSTALLATION = ("_HOME", "_PATH", "_DIR")  # ASCEND_TOOLKIT_HOME, ASCEND_OPP_PATH, ...
NEAR = 0.9


def ineffective_variables(kind: str, environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """(name, reason) of each variable in ``environ`` that seems intended for this run but has no effect.

    ``kind`` is the device's kind (``llm_npu.device.Device``): card, virtual or cpu.
    """
    reasons = {name: UNREAD.get(name) or _misspelt(name) or _absent(name, kind) for name in sorted(environ)}
    return [(name, why) for name, why in reasons.items() if why]


def _misspelt(name: str) -> str | None:
    known = (*OF_A_CARD, *READ_HERE)
    if not name.startswith(PREFIXES) or name in known or name.endswith(OF_INSTALLATION):
        return None
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"nothing reads it; did you mean {nearest[0]}?" if nearest else None


def _absent(name: str, kind: str) -> str | None:
    unused = name in OF_A_CARD and kind != "card"
    return "only a card's libraries read it, and this run does not use a card" if unused else None
