"""PaddleFormers' names where those of the libraries differ. Importing it imports no framework."""

from __future__ import annotations

TITLE = "PaddleFormers"
# Trackers that the other library does not have, and the packages that they need.
TRACKERS = {"swanlab": "swanlab"}
# Fields of a model's configuration.
TENSOR_PARALLEL, PIPELINE_PARALLEL = "tensor_model_parallel_size", "pipeline_model_parallel_size"
UNDIVIDED = {"moe_group": "dummy"}  # further fields of a model that one process has as a whole
DIVIDED = {"moe_group": "mp"}  # and of one that processes share: they spread the experts
LENGTH = "max_sequence_length"  # of the rows of a batch
# Those that are no part of a config.json.
UNSAVED: tuple[str, ...] = (
    *(TENSOR_PARALLEL, PIPELINE_PARALLEL, LENGTH, "rope_parameters", "use_cache", "use_fast_layer_norm"),
    *("fuse_attention_qkv", "fuse_attention_ffn", "use_flash_attention"),
    *("moe_group_origin", "moe_rank", "moe_world_size"),  # of the process, set by pipeline stages
)
# Matrices whose parameters have the layout of the Hugging Face files; all others are transposed.
UNTRANSPOSED = ("embed_tokens.weight", "lm_head.weight")
# How a batch gives its documents to the model (``Collator.mask``); None: that depends on what is fused.
PACKED: str | None = "rows"
# Fields that switch off fused operators which the library's models have by default.
UNFUSED = {"fuse_rms_norm": False}
# Whether ``generate`` gives a streamer the prompt, before the new tokens.
STREAMS_PROMPT = True
# {a training argument of the library: the flag}, where the names differ.
RENAMED = {
    "tensor_model_parallel_size": "tensor_parallel_degree",
    "pipeline_model_parallel_size": "pipeline_parallel_degree",
    "virtual_pipeline_model_parallel_size": "virtual_pp_degree",
    "sharding_parallel_size": "sharding_parallel_degree",
    "sep_parallel_size": "sep_parallel_degree",
    "context_parallel_size": "context_parallel_degree",
    "expert_model_parallel_size": "expert_parallel_degree",
    "expert_tensor_model_parallel_size": "expert_tensor_parallel_degree",
}
# {flag: its default, where it is not the library's}.
DEFAULTS = {"sharding": ""}
# The training arguments that are flags. The others are for CUDA, for other models, or for PaddleFormers' own
# checkpoints and data; they keep their defaults.
FLAGS: tuple[str, ...] | None = (
    *("adam_beta1", "adam_epsilon", "amp_custom_black_list", "amp_custom_white_list", "bf16_full_eval"),
    *("count_trained_tokens", "data_parallel_config", "dataloader_drop_last", "dataloader_num_workers"),
    *("ddp_find_unused_parameters", "distributed_dataloader", "do_export", "do_predict"),
    *("enable_auto_parallel", "eval_accumulation_steps", "flatten_param_grads", "fp16", "fp16_full_eval"),
    *("fuse_sequence_parallel_allreduce", "gradient_accumulation_steps", "greater_is_better"),
    *("hybrid_parallel_topo_order", "ignore_data_skip", "ignore_load_lr_and_optim", "label_names"),
    *("lazy_data_processing", "load_best_model_at_end", "local_rank", "log_on_each_node", "logging_dir"),
    *("logging_first_step", "logging_strategy", "lr_end", "max_grad_norm", "metric_for_best_model"),
    *("metrics_output_path", "minimum_eval_times", "no_cuda", "num_cycles"),
    *("num_train_epochs", "optim", "overwrite_output_dir", "pad_token_id", "past_index", "power"),
    *("prediction_loss_only", "recompute_use_reentrant", "release_grads", "remove_unused_columns"),
    *("run_name", "save_on_each_node", "save_sharded_model", "save_strategy", "scale_loss", "seed"),
    *("sequence_parallel", "sharding", "sharding_comm_buffer_size_MB", "sharding_degree"),
    *("skip_data_intervals", "skip_memory_metrics", "skip_profile_timer", "split_inputs_sequence_dim"),
    *("tensor_parallel_output", "to_static", "unified_checkpoint", "use_expert_parallel"),
    *("wandb_api_key", "wandb_http_proxy"),
    *RENAMED,
    "recompute",
)
