"""Arguments that are accepted and change nothing in this run, with the reason.

PaddleNLP's scripts pass over many arguments in silence: those of another device, of another precision, of
parallelism that is not on. Here each is a row of a table: argument -> when it has no effect, and why.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_npu.models.paddlenlp.families import FAMILIES, Family
from llm_npu.models.paddlenlp.presets import model_type

from .arguments import RunConfig

Reason = str | None


def ineffective(config: RunConfig) -> list[tuple[str, str]]:
    """(name, why) of every argument the user gave that has no effect in this run, in alphabetical order.

    An argument that was given as off (``--sequence_parallel 0``) is not listed.
    """
    found = []
    for name in sorted(config.given):
        rule = RULES.get(name)
        why = rule(config) if rule and not _off(name, config.given[name]) else None
        if why:
            found.append((name, why))
    return found


def _off(name: str, value: object) -> bool:
    """Whether the value switches off, or splits over one process, what is off anyway."""
    return value in (None, "", []) or value is False or (name.endswith("_degree") and value in (-1, 0, 1))


def always(why: str) -> Callable[[RunConfig], Reason]:
    return lambda config: why


def when(condition: Callable[[RunConfig], bool], why: str) -> Callable[[RunConfig], Reason]:
    return lambda config: why if condition(config) else None


def one_process(config: RunConfig) -> bool:
    return config.training.world_size == 1


def full_precision(config: RunConfig) -> bool:
    return not (config.training.bf16 or config.training.fp16)


def unscaled(config: RunConfig) -> bool:
    return not config.training.fp16


def not_evaluated(config: RunConfig) -> bool:
    return config.training.evaluation_strategy.value == "no"


def not_saved(config: RunConfig) -> bool:
    return config.training.save_strategy.value == "no"


def schedule_is(*names: str) -> Callable[[RunConfig], bool]:
    return lambda config: config.training.lr_scheduler_type.value in names


def schedule_is_not(*names: str) -> Callable[[RunConfig], bool]:
    return lambda config: config.training.lr_scheduler_type.value not in names


def family(config: RunConfig) -> Family:
    return FAMILIES[model_type(config.model.model_name_or_path)]


def no_experts(config: RunConfig) -> Reason:
    return None if family(config).experts else f"{family(config).name} has no experts"


def keeps_projections_apart(config: RunConfig) -> Reason:
    if config.training.enable_auto_parallel:
        return "--enable_auto_parallel keeps these projections apart"
    found = family(config)
    return None if found.fuses_projections else f"PaddleNLP's {found.name} keeps these projections apart"


ONE_PROCESS = when(one_process, "it acts between processes, and this run has one (--nproc starts more)")
WHOLE_LAYERS = when(
    lambda config: config.training.tensor_parallel_degree <= 1, "every process has whole layers here"
)
ONE_STAGE = when(lambda config: config.training.pipeline_parallel_degree <= 1, "there is no pipeline here")
NONE_TO_SHARD = when(
    lambda config: not config.training.sharding,
    "the other degrees take all processes, or its own is 1: there is nobody to share with",
)
NOT_SHARDED = when(lambda config: not config.training.sharding, "--sharding is not given")
CUDA = always("it switches a CUDA kernel, which neither an NPU nor the host has")
GPT = always("PaddleNLP reads it in its GPT models only")
FOLLOWS_DECAY = when(schedule_is_not("cosine", "linear"), "only the cosine and linear schedules end at it")
NO_EVALUATION = when(not_evaluated, "evaluation is off (--evaluation_strategy no)")
PIPELINE_BATCH = when(
    lambda config: config.training.pipeline_parallel_degree > 1 and not config.training.enable_auto_parallel,
    "PaddleNLP's pipeline evaluates as many samples at once as a step trains of them on one process",
)
NO_CHECKPOINTS = when(not_saved, "periodic checkpoints are off (--save_strategy no)")
NO_RECOMPUTE = when(lambda config: not config.training.recompute, "it refines --recompute, which is off")
NEWEST_KEPT = always("the newest checkpoints are kept, and the model is the last one")
OWN_CHECKPOINTS = always("checkpoints are written whole, in the layout of Hugging Face")
NOT_RESUMED = when(lambda config: config.training.resume_from_checkpoint is None, "no checkpoint is resumed")
NO_WANDB = when(lambda config: "wandb" not in config.training.report_to, "--report_to does not name wandb")
NOT_AMP = when(full_precision, "the run computes in fp32 (neither --bf16 nor --fp16)")
NOT_LORA = when(lambda config: config.model.finetuning_type != "lora", "it belongs to --finetuning_type lora")
DISABLED = when(lambda config: config.fused.disable_fused_options, "--disable_fused_options switches it off")
NOT_EXPORTED = always("this script trains; it does not export or run predictions")

RULES: dict[str, Callable[[RunConfig], Reason]] = {
    # one process
    **dict.fromkeys(
        (
            "tensor_parallel_degree", "pipeline_parallel_degree", "sharding_degree",
            "sharding_parallel_degree", "sharding_parallel_mesh_dimension", "sep_parallel_degree",
            "context_parallel_degree",
            "split_inputs_sequence_dim", "expert_parallel_degree", "expert_tensor_parallel_degree",
            "use_expert_parallel", "data_parallel_config", "hybrid_parallel_topo_order",
            "ddp_find_unused_parameters", "log_on_each_node", "save_on_each_node",
        ),
        ONE_PROCESS,
    ),
    "sharding": lambda config: ONE_PROCESS(config) or NONE_TO_SHARD(config),
    **dict.fromkeys(
        ("sequence_parallel", "sequence_parallel_config", "fuse_sequence_parallel_allreduce",
         "tensor_parallel_config", "tensor_parallel_output", "overlap"),
        lambda config: ONE_PROCESS(config) or WHOLE_LAYERS(config),
    ),
    **dict.fromkeys(
        ("pipeline_parallel_config", "virtual_pp_degree", "pp_recompute_interval"),
        lambda config: ONE_PROCESS(config) or ONE_STAGE(config),
    ),
    **dict.fromkeys(
        ("sharding_parallel_config", "sharding_comm_buffer_size_MB"),
        lambda config: ONE_PROCESS(config) or NOT_SHARDED(config),
    ),
    "max_restarts": when(
        lambda config: config.training.max_restarts and (config.training.nproc or 1) == 1,
        "it is --nproc that starts ranks again",
    ),
    "distributed_dataloader": always("every process reads its own samples, from memory-mapped files"),
    # another device or another model
    **dict.fromkeys(("use_fast_layer_norm", "enable_linear_fused_grad_add", "no_cuda"), CUDA),
    **dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob", "use_fused_linear", "use_fused_dropout_add"),
        GPT,
    ),
    **dict.fromkeys(("expert_max_capacity", "expert_min_capacity"), always("no token is dropped")),
    **dict.fromkeys(("fuse_attention_qkv", "fuse_attention_ffn"), keeps_projections_apart),
    **dict.fromkeys(
        ("use_npu_fusion_attention", "use_fused_rms_norm", "use_fused_rope", "use_fused_swiglu"), DISABLED
    ),
    "use_fused_moe": lambda config: DISABLED(config) or no_experts(config),
    # precision
    **dict.fromkeys(("fp16_opt_level", "amp_custom_black_list", "amp_custom_white_list"), NOT_AMP),
    "amp_master_grad": when(
        lambda config: full_precision(config) or config.training.fp16_opt_level != "O2",
        "it acts with --bf16 or --fp16 and --fp16_opt_level O2 only",
    ),
    "nonfinite": when(
        lambda config: config.training.fp16 or config.training.check_nan_inf,
        "with fp16 the loss scale decides, and --check_nan_inf stops at the first bad number",
    ),
    "scale_loss": when(unscaled, "only fp16 needs loss scaling"),
    # schedule
    "min_learning_rate": FOLLOWS_DECAY,
    "decay_steps": when(schedule_is("constant", "constant_with_warmup"), "it does not decay"),
    "warmup_steps": when(schedule_is("constant"), "the constant schedule has no warmup"),
    "warmup_ratio": when(
        lambda config: config.given.get("warmup_steps") or schedule_is("constant")(config),
        "--warmup_steps decides, or the schedule has no warmup",
    ),
    "num_cycles": always("PaddleNLP's cosine schedule with a minimum has one half wave"),
    "lr_end": when(schedule_is_not("polynomial"), "it belongs to --lr_scheduler_type polynomial"),
    "power": when(schedule_is_not("polynomial"), "it belongs to --lr_scheduler_type polynomial"),
    "num_train_epochs": when(lambda config: config.training.max_steps > 0, "--max_steps decides"),
    # evaluation, logging, checkpoints
    **dict.fromkeys(
        ("eval_steps", "max_evaluate_steps", "minimum_eval_times", "prediction_loss_only",
         "eval_accumulation_steps", "bf16_full_eval", "fp16_full_eval"),
        NO_EVALUATION,
    ),
    "per_device_eval_batch_size": lambda config: NO_EVALUATION(config) or PIPELINE_BATCH(config),
    **dict.fromkeys(("save_steps", "save_total_limit", "async_save"), NO_CHECKPOINTS),
    "logging_steps": when(
        lambda config: config.training.logging_strategy.value != "steps", "--logging_strategy is not steps"
    ),
    "trust_checkpoint": NOT_RESUMED,
    **dict.fromkeys(("load_best_model_at_end", "metric_for_best_model", "greater_is_better"), NEWEST_KEPT),
    **dict.fromkeys(
        ("unified_checkpoint", "unified_checkpoint_config", "ckpt_quant_stage", "use_async_save",
         "ignore_save_lr_and_optim", "output_signal_dir", "save_sharded_model", "load_sharded_model",
         "force_reshard_pp", "ordered_save_group_size"),
        OWN_CHECKPOINTS,
    ),
    **dict.fromkeys(("wandb_api_key", "wandb_http_proxy"), NO_WANDB),
    **dict.fromkeys(("do_export", "do_predict"), NOT_EXPORTED),
    # recompute
    **dict.fromkeys(
        ("recompute_granularity", "recompute_use_reentrant", "no_recompute_layers", "refined_recompute",
         "offload_recompute_inputs"),
        NO_RECOMPUTE,
    ),
    # fine-tuning and samples
    **dict.fromkeys(("lora_rank", "lora_alpha", "lora_dropout", "lora_target"), NOT_LORA),
    "chat_template": when(lambda config: config.data.stage != "sft", "it belongs to --stage sft"),
    "padding": when(
        lambda config: config.data.packing == "stream", "the samples of --packing stream are all full"
    ),
    "reset_attention_mask": when(
        lambda config: config.data.packing != "stream",
        "with every --packing but stream documents see nothing of each other anyway",
    ),
    # data
    "share_folder": always("no index files are built, so no machine waits for another"),
    "skip_warmup": always("memory-mapped files are read as they are needed"),
    "dataloader_num_workers": when(
        lambda config: config.given["dataloader_num_workers"],
        "samples are cut from memory-mapped files, in the process itself",
    ),
    "lazy_data_processing": always("samples are cut from memory-mapped files"),
    "remove_unused_columns": always("a sample holds input_ids and labels only"),
    "pad_token_id": when(
        lambda config: not config.training.count_trained_tokens, "it is read with --count_trained_tokens only"
    ),
    # PaddleCloud
    "pdc_download_ckpt": always("it belongs to PaddleCloud"),
    "pdc_download_timeout": always("it belongs to PaddleCloud"),
}  # fmt: skip
