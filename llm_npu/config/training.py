"""This script's own training flags, and PaddleNLP's flags with another default or help text here.

``build.PretrainArguments`` joins them with PaddleNLP's ``TrainingArguments``; importing this module imports
no framework. ``library_flags`` has the library's remaining flags.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.core import peak_flops
from llm_npu.models.library import names

from . import no_effect
from .early import OUTPUT_DIR
from .flag import NoEffect, flag
from .formats import (
    check_device,
    check_device_checks,
    check_expert_overlap,
    dumped_steps,
    layer_range,
    profile_window,
)


@dataclass
class TrainingFlags:
    """Training flags. The learning rate at step s, with w ``warmup_steps``, d ``decay_steps``,
    M ``learning_rate`` and m ``min_learning_rate``:

    s <= w    M s / w
    s <= d    m + (M - m) (1 + cos(pi (s - w) / (d - w))) / 2        cosine
              m + (M - m) (1 - (s - w) / (d - w))                    linear
    s >  d    m
    """

    # Processes
    output_dir: str = flag(OUTPUT_DIR, "Folder for checkpoints, metrics and the loss curve.", path=True)
    device: str = flag(
        "npu",
        "npu (a card if there is one, else the virtual NPU), npu:N, virtual_npu, virtual_npu:N, npu:card or "
        "cpu.",
        check_format=check_device,
    )
    nproc: int | None = flag(
        None, "Number of processes to start, one per device of this machine.", at_least=1
    )
    max_restarts: int = flag(
        0,
        "Maximum number of restarts of all processes after one failed, was killed, or was stopped (SIGSTOP) "
        "for 4 s. Needs --nproc and --resume_from_checkpoint auto.",
        at_least=0,
        no_effect=NoEffect(
            "--nproc starts no ranks to restart",
            lambda run: run.max_restarts and (run.nproc or 1) == 1,
        ),
    )
    overlap: str | None = flag(
        None,
        "Overlap communication and computation in tensor parallel layers: auto (a planner decides per "
        "shape), pipelined:CHUNKS, mc2 or serial. By default fleet's layers are used.",
        no_effect=no_effect.NO_TENSOR_PARALLEL,
    )
    expert_overlap: str | None = flag(
        None,
        "Overlap the exchange of tokens with the experts of --expert_parallel_degree, computed in groups: "
        "auto (a planner times numbers of groups), pipelined:GROUPS or serial, the default.",
        check_format=check_expert_overlap,
        no_effect=no_effect.NO_EXPERTS_OVER_RANKS,
    )
    moe_expert_capacity_factor: float | None = flag(
        None,
        "Capacity of an expert: this factor times the mean number of choices per expert, for the tokens of a "
        "micro batch on a rank. The least probable choices beyond it are dropped. By default no token is "
        "dropped.",
        at_least=0.1,
    )
    pipeline_schedule: str | None = flag(
        None,
        "Order of micro batches in a pipeline: 1f1b; interleaved, with --virtual_pp_degree chunks of layers "
        "per stage; dualpipev, a V-shaped schedule with two chunks per stage and weight gradients computed "
        "where a stage would wait. By default interleaved with --virtual_pp_degree above 1, else 1f1b.",
        choices=("1f1b", "interleaved", "dualpipev"),
        no_effect=no_effect.NO_PIPELINE,
    )

    # Length, batch and learning rate
    do_train: bool = flag(True, "Train.")
    max_steps: int = flag(200, "Number of optimizer steps; -1 uses --num_train_epochs.")
    exit_duration_in_mins: float | None = flag(
        None,
        "Save a checkpoint and end the run after the first step that ends at least this many minutes after "
        "the start of the process, such as before a job's time limit; --resume_from_checkpoint auto "
        "continues it. Each restart of --max_restarts resets the clock.",
        at_least=0,
    )
    per_device_train_batch_size: int = flag(8, "Samples per device and micro batch.", at_least=1)
    learning_rate: float = flag(2e-3, "Peak learning rate.", at_least=0)
    min_learning_rate: float = flag(
        2e-4,
        "Learning rate after decay_steps; by default learning_rate / 10.",
        at_least=0,
        no_effect=no_effect.unless_schedule("cosine", "linear"),
    )
    warmup_steps: int = flag(
        0,
        "Steps of linear warmup; by default warmup_ratio * max_steps.",
        at_least=0,
        no_effect=no_effect.CONSTANT,
    )
    warmup_ratio: float = flag(
        0.1,
        "Fraction of max_steps for linear warmup.",
        at_least=0,
        no_effect=(
            NoEffect("--warmup_steps is set", lambda run: run.explicit.get("warmup_steps")),
            no_effect.CONSTANT,
        ),
    )
    decay_steps: int | None = flag(
        None,
        "Step at which the learning rate reaches min_learning_rate; by default max_steps.",
        at_least=1,
        no_effect=NoEffect(
            "the constant schedules do not decay",
            lambda run: run.lr_scheduler_type in ("constant", "constant_with_warmup"),
        ),
    )
    lr_scheduler_type: str = flag(
        "cosine",
        "Learning rate schedule.",
        choices=("linear", "cosine", "constant", "constant_with_warmup", "polynomial"),
    )
    weight_decay: float = flag(0.1, "Weight decay of AdamW.", at_least=0)
    adam_beta2: float = flag(0.95, "Second beta of AdamW.", at_least=0, below=1)

    # Precision and fused paths
    bf16: bool = flag(True, "Train in bfloat16 (off with --fp16).")
    fp16_opt_level: str = flag(
        "O2",
        "O1: autocast per operator. O2: low-precision weights with float32 master weights.",
        choices=("O0", "O1", "O2"),
        no_effect=no_effect.FLOAT32,
    )
    amp_master_grad: bool = flag(
        True,
        "With --fp16_opt_level O2, accumulate gradients in float32.",
        no_effect=(
            no_effect.FLOAT32,
            NoEffect("--fp16_opt_level is not O2", lambda run: run.fp16_opt_level != "O2"),
        ),
    )
    # The library's fused paths stay off. Unannotated, these are not fields; FusedArguments has the flags.
    use_flash_attention = False
    use_fused_rms_norm = False
    use_fused_rope = False
    use_fused_linear_cross_entropy = False
    pipeline_schedule_mode = "1F1B"  # PaddleNLP reads it with --enable_auto_parallel; not a flag
    enable_linear_fused_grad_add: bool = flag(
        False, "Use PaddleNLP's CUDA kernel for the backward pass of nn.Linear.", no_effect=no_effect.CUDA
    )

    # Host memory
    offload_optimizer: str | None = flag(
        None,
        "Keep AdamW's moments and master weights in host memory. device: the update runs on the device, with "
        "the states of a few weights at a time, and with the same bits as without. host: the update runs on "
        "the host.",
        choices=("device", "host"),
        value_if_bare="device",
        aliases=("offload_optim", "tensorwise_offload_optimizer"),
        no_effect=no_effect.CPU_DEVICE,
    )
    offload_activations: str | None = flag(
        None,
        "Keep the inputs of recomputed decoder layers in host memory from forward to backward: all, or "
        "layers such as 0:16 (0 to 15) or 0:32:2 (every second one).",
        check_format=layer_range,
        value_if_bare="all",
        aliases=("offload_recompute_inputs",),
        no_effect=(no_effect.CPU_DEVICE, no_effect.NO_RECOMPUTE),
    )

    # Numerics and observation
    nonfinite: str = flag(
        "stop",
        "At a step with NaN or infinite loss or gradients, stop the run or skip the step. --fp16 always "
        "skips the step and lowers the loss scale.",
        choices=("stop", "skip"),
        no_effect=(
            NoEffect("--fp16 uses the loss scaler", lambda run: run.fp16),
            NoEffect("--check_nan_inf stops at the first NaN or infinity", lambda run: run.check_nan_inf),
        ),
    )
    check_nan_inf: bool = flag(
        False,
        "Check the outputs of every operator (on a card, of every layer) and stop at the first NaN or "
        "infinity, naming its layer and operator. Slow.",
    )
    check_acl_errors: int | None = flag(
        None,
        "Stop at an operator that CANN rejects: read the error message after each operator of every N-th "
        "step and of steps with new shapes, and at the end of the others. 0 turns it off. By default 1 on a "
        "card, 0 on other devices.",
        at_least=0,
        no_effect=NoEffect("the CPU place has no CANN", lambda run: run.device == "cpu"),
    )
    verify_operators: bool | None = flag(
        None,
        "Compare the fused operators of the first step with their definitions, and stop where one differs. "
        "By default true on a card.",
        no_effect=no_effect.NOT_FUSED,
    )
    compare_with: str | None = flag(
        None,
        "Run the first step twice before training and report layers whose outputs differ by more than "
        f"rounding. composed: against plain Paddle operators; upstream: against the layers of {names.TITLE}.",
        choices=("composed", "upstream"),
    )
    dump_tensors: str | None = flag(
        None,
        "Write all layer outputs and gradients of these steps, such as 1 or 1:3, to <output_dir>/tensors, "
        "for llm-npu numerics compare.",
        check_format=dumped_steps,
    )
    deterministic: bool = flag(False, "Make two runs bit-identical; docs/numerics.md lists the conditions.")
    check_device: str | None = flag(
        None,
        "Errors to look for on the virtual NPU: race (accesses without an order), init (use of memory that "
        "was never written), memory (bounds, use after free), sync (the host's waits for the device, by "
        "line), or several, separated by commas. docs/device_checks.md explains them.",
        check_format=check_device_checks,
        comma_separated=True,
    )
    check_dtypes: bool = flag(
        True, "Report tensors and operators with dtypes that the NPU's cores do not support."
    )
    profile: str | None = flag(
        None,
        "Profile steps into output_dir/profile: steps=10:13 (steps 10 to 12), then any of ,shapes ,memory "
        ",call_sites and ,warmup=N.",
        check_format=profile_window,
    )
    explain_parallel: bool = flag(
        False,
        "With --enable_auto_parallel, print each parameter's placement and the communication of a step.",
        no_effect=NoEffect(
            "--enable_auto_parallel is not set",
            lambda run: not run.enable_auto_parallel,
        ),
    )
    peak_tflops: str | None = flag(
        None,
        "Peak throughput of one device, for MFU: teraFLOP/s, a card such as ascend910b3, or measured (the "
        "matmul throughput that this device reaches).",
        check_format=peak_flops.stated,
    )
    logging_steps: int = flag(
        10,
        "Steps between log lines.",
        at_least=1,
        no_effect=NoEffect("--logging_strategy is not steps", lambda run: run.logging_strategy != "steps"),
    )
    disable_tqdm: bool = flag(False, "Disable the progress bar.")
    report_to: list[str] | None = flag([], "Experiment trackers to report to; none by default.")

    # Evaluation
    do_eval: bool = flag(True, "Evaluate on the validation split.")
    evaluation_strategy: str = flag(
        "steps",
        "When to evaluate.",
        choices=("no", "steps"),
        aliases=("eval_strategy",),
        hint=lambda value: " The whole run is one epoch; set --eval_steps instead." * (value == "epoch"),
    )
    eval_steps: int = flag(100, "Steps between evaluations.", at_least=1, no_effect=no_effect.NO_EVALUATION)
    max_evaluate_steps: int = flag(
        -1, "Number of batches per evaluation; -1 means all.", at_least=1, no_effect=no_effect.NO_EVALUATION
    )
    per_device_eval_batch_size: int = flag(
        4,
        "Samples per device in evaluation.",
        at_least=1,
        no_effect=(
            no_effect.NO_EVALUATION,
            NoEffect(
                f"the pipeline of {names.TITLE} evaluates with the number of samples per process and "
                "training step",
                lambda run: (
                    run.processes > 1 and run.pipeline_parallel_degree > 1 and not run.enable_auto_parallel
                ),
            ),
        ),
    )

    # Checkpoints
    save_steps: int = flag(100, "Steps between checkpoints.", at_least=1, no_effect=no_effect.NO_CHECKPOINTS)
    save_total_limit: int | None = flag(
        2, "Number of checkpoints to keep.", at_least=1, no_effect=no_effect.NO_CHECKPOINTS
    )
    async_save: bool = flag(
        False,
        "Save checkpoints in the background, from a copy in host memory.",
        no_effect=no_effect.NO_CHECKPOINTS,
    )
    resume_from_checkpoint: bool | str | None = flag(
        None,
        "Checkpoint folder to resume from; without a value, the newest in output_dir; auto: the newest, or "
        "start at step 0 if there is none.",
        value_if_bare=True,
        path=True,
    )
