"""Flags for training arguments of PaddleNLP and PaddleFormers that are not in ``TrainingFlags``.

Importing a library takes seconds, and the device has to be chosen first, so reading flags must not import
one. The fields are therefore declared here; a test compares their names, types and defaults with the
dataclass of the installed library.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from llm_npu.models import library
from llm_npu.models.library import names

from . import no_effect
from .flag import Flag, NoEffect, flag, flags_of

ONE_PROCESS, FLOAT32, NOT_SHARDED = no_effect.ONE_PROCESS, no_effect.FLOAT32, no_effect.NOT_SHARDED
TENSOR, PIPELINE = no_effect.NO_TENSOR_PARALLEL, no_effect.NO_PIPELINE
NO_EVALUATION, NO_RECOMPUTE, CUDA = no_effect.NO_EVALUATION, no_effect.NO_RECOMPUTE, no_effect.CUDA
NEWEST_KEPT, WHOLE_CHECKPOINTS = no_effect.NEWEST_KEPT, no_effect.WHOLE_CHECKPOINTS


@dataclass
class LibraryFlags:
    """The flags of both libraries, with PaddleNLP's names and defaults.

    PaddleFormers' ``names`` lists renamed flags (``RENAMED``) and other defaults (``DEFAULTS``). Its
    remaining training arguments are for CUDA, other models, or its own checkpoints and data; they keep their
    defaults.
    """

    # Length, batch and learning rate
    num_train_epochs: float = flag(
        1.0,
        "Passes over the data with --max_steps -1.",
        at_least=0,
        no_effect=NoEffect("--max_steps decides", lambda run: run.max_steps > 0),
    )
    gradient_accumulation_steps: int = flag(1, "Micro batches per optimizer step.", at_least=1)
    skip_data_intervals: list[list[int]] | None = flag(
        None, "First and last step of a range whose data is skipped; can be repeated."
    )
    dataloader_drop_last: bool = flag(False, "Drop the last batch if it is incomplete.")
    dataloader_num_workers: int = flag(
        0,
        "Number of data loading processes.",
        at_least=0,
        no_effect=NoEffect(no_effect.MEMORY_MAPPED.why, lambda run: run.dataloader_num_workers),
    )
    distributed_dataloader: bool = flag(
        False, "Load data on one rank for all ranks.", no_effect=no_effect.OWN_SAMPLES
    )
    lazy_data_processing: bool = flag(True, "Process samples on demand.", no_effect=no_effect.MEMORY_MAPPED)
    remove_unused_columns: bool = flag(
        True, "Remove columns that the model does not read.", no_effect=no_effect.IDS_AND_LABELS
    )
    lr_end: float = flag(
        1e-7,
        "Last learning rate of the polynomial schedule.",
        no_effect=no_effect.unless_schedule("polynomial"),
    )
    power: float = flag(
        1.0, "Power of the polynomial schedule.", no_effect=no_effect.unless_schedule("polynomial")
    )
    num_cycles: float = flag(0.5, "Waves of the cosine schedule.", no_effect=no_effect.HALF_COSINE)
    seed: int = flag(42, "Seed of weights, data order and dropout.", at_least=0)

    # Optimizer
    optim: str = flag("adamw", "Optimizer.", choices=("adamw",))
    adam_beta1: float = flag(0.9, "First beta of AdamW.", at_least=0, below=1)
    adam_epsilon: float = flag(1e-8, "Epsilon of AdamW.", at_least=0)
    max_grad_norm: float = flag(1.0, "Clip gradients to this global norm.", at_least=0)
    flatten_param_grads: bool = flag(False, "Store the optimizer's parameters and gradients contiguously.")
    release_grads: bool = flag(False, "Free gradients after each step instead of setting them to zero.")

    # Precision
    fp16: bool = flag(False, "Train in float16.")
    scale_loss: float = flag(
        32768,
        "Initial loss scale.",
        no_effect=NoEffect("only --fp16 scales the loss", lambda run: not run.fp16),
    )
    amp_custom_black_list: list[str] | None = flag(
        None, "Operators that autocast keeps in float32.", no_effect=FLOAT32
    )
    amp_custom_white_list: list[str] | None = flag(
        None, "Operators that autocast runs in low precision.", no_effect=FLOAT32
    )
    bf16_full_eval: bool = flag(False, "Evaluate in bfloat16.", no_effect=NO_EVALUATION)
    fp16_full_eval: bool = flag(False, "Evaluate in float16.", no_effect=NO_EVALUATION)
    no_cuda: bool = flag(False, "Do not use CUDA devices.", no_effect=CUDA)

    # Parallelism
    tensor_parallel_degree: int = flag(
        -1, "Number of ranks that split each weight matrix; -1 means 1.", no_effect=ONE_PROCESS
    )
    tensor_parallel_output: bool = flag(True, "Compute the loss on sharded logits.", no_effect=TENSOR)
    sequence_parallel: bool = flag(
        False, "Also split activations between layers along the sequence.", no_effect=TENSOR
    )
    fuse_sequence_parallel_allreduce: bool = flag(
        False, "Reduce the gradients of all sequence-parallel parameters in one message.", no_effect=TENSOR
    )
    pipeline_parallel_degree: int = flag(-1, "Number of pipeline stages; -1 means 1.", no_effect=ONE_PROCESS)
    virtual_pp_degree: int = flag(1, "Chunks of layers per stage (interleaved schedule).", no_effect=PIPELINE)
    sharding: str = flag(
        "",
        "stage1 shards the optimizer's state over data-parallel ranks, stage2 gradients as well, stage3 "
        "also weights.",
        no_effect=no_effect.ONE_SHARD,
    )
    sharding_parallel_degree: int = flag(
        -1,
        "Number of ranks to shard over; -1 means all ranks that the other degrees leave.",
        no_effect=ONE_PROCESS,
    )
    sharding_degree: int = flag(-1, "Deprecated name of --sharding_parallel_degree.", no_effect=ONE_PROCESS)
    sharding_comm_buffer_size_MB: int = flag(
        -1, "Buffer size of fused gradient messages; -1 means 256 MB.", no_effect=NOT_SHARDED
    )
    hybrid_parallel_topo_order: str | None = flag(
        None,
        "Order of the groups of ranks: pp_first (dp, pp, sharding, tp) or sharding_first (dp, sharding, pp, "
        "tp).",
        no_effect=ONE_PROCESS,
    )
    data_parallel_config: str = flag(
        "",
        "enable_allreduce_avg_in_gradinent_scale, gradient_sync_after_accumulate (auto-parallel only).",
        no_effect=ONE_PROCESS,
    )
    ddp_find_unused_parameters: bool | None = flag(
        None, "Set find_unused_parameters of paddle.DataParallel.", no_effect=ONE_PROCESS
    )
    sep_parallel_degree: int = flag(
        -1,
        "Ranks that share every sequence: each has a part of its tokens, and all tokens of some heads in "
        "attention (Ulysses).",
        no_effect=ONE_PROCESS,
    )
    context_parallel_degree: int = flag(
        -1,
        "Ranks that share every sequence in a ring: each has two chunks of its tokens, and keys and values "
        "circulate around the ring. --sep_parallel_degree then splits the tokens of each rank.",
        no_effect=ONE_PROCESS,
    )
    split_inputs_sequence_dim: bool = flag(
        True, "Split inputs along the sequence for the two flags above; always on.", no_effect=ONE_PROCESS
    )
    expert_parallel_degree: int = flag(
        -1,
        "Ranks that share the experts of every MoE layer; tokens are sent to the ranks of their experts "
        "(Mixtral and Qwen2-MoE with PaddleNLP; Qwen3-MoE, ERNIE-4.5-MoE and DeepSeek-V3 with "
        "PaddleFormers).",
        no_effect=ONE_PROCESS,
    )
    expert_tensor_parallel_degree: int = flag(
        -1, "Ranks that split each expert; only 1 is supported.", no_effect=ONE_PROCESS
    )
    use_expert_parallel: bool = flag(
        False, "Split the experts over data-parallel ranks; only false is supported.", no_effect=ONE_PROCESS
    )
    enable_auto_parallel: bool = flag(
        False, "Use Paddle's auto-parallel: shard a single-device model by annotating its weights."
    )
    to_static: bool = flag(False, "With --enable_auto_parallel, capture each step as one static program.")
    local_rank: int = flag(-1, "Set by launchers.")

    # Recompute
    recompute: bool = flag(
        False,
        "Recompute each decoder layer in the backward pass to save memory.",
        aliases=("gradient_checkpointing",),
    )
    recompute_use_reentrant: bool = flag(
        False, "Recompute by a PyLayer instead of hooks.", no_effect=NO_RECOMPUTE
    )

    # Evaluation
    minimum_eval_times: int | None = flag(
        None, "Minimum number of evaluations; lowers --eval_steps.", no_effect=NO_EVALUATION
    )
    prediction_loss_only: bool = flag(False, "Evaluations return only the loss.", no_effect=NO_EVALUATION)
    eval_accumulation_steps: int | None = flag(
        None, "Evaluation steps between copies to host memory.", no_effect=NO_EVALUATION
    )
    label_names: list[str] | None = flag(None, "Keys of a batch that contain labels.")
    past_index: int = flag(
        -1, "Index of the model output that is passed to the next step as state; -1 means none."
    )
    load_best_model_at_end: bool = flag(False, "Load the best checkpoint at the end.", no_effect=NEWEST_KEPT)
    metric_for_best_model: str | None = flag(None, "Metric of the best checkpoint.", no_effect=NEWEST_KEPT)
    greater_is_better: bool | None = flag(None, "Whether a larger metric is better.", no_effect=NEWEST_KEPT)
    do_predict: bool = flag(False, "Predict on the test split.", no_effect=no_effect.ONLY_TRAINS)
    do_export: bool = flag(False, "Export a program for inference.", no_effect=no_effect.ONLY_TRAINS)

    # Checkpoints
    save_strategy: str = flag(
        "steps",
        "When to save checkpoints.",
        choices=("no", "steps"),
        hint=lambda value: " The whole run is one epoch; set --save_steps instead." * (value == "epoch"),
    )
    overwrite_output_dir: bool = flag(False, "Replace the checkpoints of an earlier run in --output_dir.")
    ignore_data_skip: bool = flag(False, "Start a resumed run at the beginning of the data.")
    ignore_load_lr_and_optim: bool = flag(
        False, "Start a resumed run with a new optimizer state and schedule."
    )
    save_on_each_node: bool = flag(False, "Save checkpoints on each machine.", no_effect=ONE_PROCESS)
    unified_checkpoint: bool = flag(False, "The library's checkpoint format.", no_effect=WHOLE_CHECKPOINTS)
    save_sharded_model: bool = flag(
        False, "Each rank saves its shard of the model.", no_effect=WHOLE_CHECKPOINTS
    )

    # Logs
    logging_strategy: str = flag("steps", "When to log.", choices=("no", "steps", "epoch"))
    logging_first_step: bool = flag(False, "Log the first step.")
    logging_dir: str | None = flag(None, "Folder of VisualDL's log.", path=True)
    log_on_each_node: bool = flag(True, "Log on each machine.", no_effect=ONE_PROCESS)
    metrics_output_path: str | None = flag(None, "Folder of the library's own metrics.", path=True)
    run_name: str | None = flag(None, "Name of the run in trackers.")
    wandb_api_key: str | None = flag(None, "Key of Weights & Biases.", no_effect=no_effect.NO_WANDB)
    wandb_http_proxy: str | None = flag(None, "Proxy of Weights & Biases.", no_effect=no_effect.NO_WANDB)
    count_trained_tokens: bool = flag(False, "Log the number of non-padding tokens.")
    pad_token_id: int = flag(
        0,
        "Token that --count_trained_tokens does not count.",
        no_effect=NoEffect("--count_trained_tokens is off", lambda run: not run.count_trained_tokens),
    )
    skip_memory_metrics: bool = flag(True, "Do not log device memory.")
    skip_profile_timer: bool = flag(True, "Do not log the time of each step phase.")


@dataclass
class PaddleNLPFlags:
    """Flags that exist only in PaddleNLP."""

    recompute_granularity: str = flag(
        "full",
        "What --recompute recomputes: whole layers, their attention block (full_attn), or only the attention "
        "operator (core_attn).",
        choices=("full", "full_attn", "core_attn"),
        no_effect=NO_RECOMPUTE,
    )
    no_recompute_layers: list[int] | None = flag(None, "Layers without recompute.", no_effect=NO_RECOMPUTE)
    pp_recompute_interval: int = flag(
        1, "Number of layers in a recomputed block of a stage.", no_effect=PIPELINE
    )
    refined_recompute: str = flag(
        "",
        "Operators excluded from recompute, each with a number of layers (-1: all), such as flash_attn:-1,"
        "mlp_column_ln:5; also attention_column_ln, attention_row_ln and mlp_row_ln.",
        no_effect=NO_RECOMPUTE,
    )
    tensor_parallel_config: str = flag(
        "",
        "enable_mp_async_allreduce, enable_mp_skip_c_identity, enable_mp_fused_linear_param_grad_add, "
        "enable_sp_async_reduce_scatter, enable_delay_scale_loss, sync_param, sync_grad, sync_moment, "
        "replace_with_c_embedding, replace_with_parallel_cross_entropy.",
        no_effect=TENSOR,
    )
    sequence_parallel_config: str = flag(
        "", "enable_allreduce_avg_in_gradinent_scale (auto-parallel only).", no_effect=TENSOR
    )
    pipeline_parallel_config: str = flag(
        "",
        "disable_p2p_cache_shape, disable_partial_send_recv, enable_delay_scale_loss, "
        "enable_dp_comm_overlap, enable_sharding_comm_overlap, enable_overlap_p2p_comm, "
        "enable_clear_every_step_cache, disable_batch_p2p_comm, enable_split_backward.",
        no_effect=PIPELINE,
    )
    sharding_parallel_config: str = flag(
        "",
        "enable_stage1_tensor_fusion, enable_stage1_overlap, disable_stage1_reduce_avg, "
        "enable_stage2_overlap, enable_stage1_broadcast_overlap, enable_stage1_allgather_overlap; for "
        "auto-parallel enable_tensor_fusion, enable_overlap.",
        no_effect=NOT_SHARDED,
    )
    sharding_parallel_mesh_dimension: str = flag(
        "dp", "Mesh axis that auto-parallel shards over.", no_effect=ONE_PROCESS
    )
    auto_parallel_resume_form_hybrid_parallel: bool = flag(
        False, "Let auto-parallel resume from a checkpoint saved with different parallel degrees."
    )
    use_fused_linear: bool = flag(False, "Use fused linear layers in GPT.", no_effect=CUDA)
    use_fused_dropout_add: bool = flag(False, "Use fused dropout and addition in GPT.", no_effect=CUDA)
    expert_max_capacity: int = flag(
        1 << 32, "Maximum number of tokens per expert.", no_effect=no_effect.NO_DROPPED_TOKENS
    )
    expert_min_capacity: int = flag(
        1, "Minimum number of tokens per expert.", no_effect=no_effect.NO_DROPPED_TOKENS
    )
    ckpt_quant_stage: str = flag(
        "O0", "Quantization of checkpoints: O0 none, O1 int8, O2 int4.", no_effect=WHOLE_CHECKPOINTS
    )
    unified_checkpoint_config: str = flag("", "Options of --unified_checkpoint.", no_effect=WHOLE_CHECKPOINTS)
    use_async_save: bool = flag(
        False,
        "The library's asynchronous checkpoints; this trainer has --async_save.",
        no_effect=WHOLE_CHECKPOINTS,
    )
    ignore_save_lr_and_optim: bool = flag(
        False, "Do not save optimizer state and schedule.", no_effect=WHOLE_CHECKPOINTS
    )
    output_signal_dir: str | None = flag(
        None, "Folder for the signal files of asynchronous checkpoints.", no_effect=WHOLE_CHECKPOINTS
    )
    load_sharded_model: bool = flag(False, "Load a sharded model.", no_effect=WHOLE_CHECKPOINTS)
    force_reshard_pp: bool = flag(
        False,
        "Reshard pipeline stages of a checkpoint even if their number is unchanged.",
        no_effect=WHOLE_CHECKPOINTS,
    )
    ordered_save_group_size: int = flag(
        0, "Number of ranks that save a checkpoint at once; 0 means all.", no_effect=WHOLE_CHECKPOINTS
    )
    save_sharding_stage1_model_include_freeze_params: bool = flag(
        False, "With --sharding stage1, include frozen parameters in checkpoints."
    )
    pdc_download_ckpt: bool = flag(False, "Download a checkpoint.", no_effect=no_effect.PADDLE_CLOUD)
    pdc_download_timeout: int = flag(
        300, "Timeout of the download in seconds.", no_effect=no_effect.PADDLE_CLOUD
    )


@functools.cache
def library_flags() -> dict[str, Flag]:
    """The flags of the installed library by name; PaddleNLP's if neither library is installed."""
    flags = flags_of(LibraryFlags, names.TITLE)
    if library.installed_or_none() != library.PADDLEFORMERS:
        flags |= flags_of(PaddleNLPFlags, names.TITLE)
    for name, default in names.DEFAULTS.items():
        flags[name] = dataclasses.replace(flags[name], default=default)
    for upstream, name in names.RENAMED.items():
        flags[name] = dataclasses.replace(flags[name], aliases=(*flags[name].aliases, upstream))
    return flags
