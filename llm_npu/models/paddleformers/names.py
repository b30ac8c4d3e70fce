"""PaddleFormers' names where those of the libraries differ. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

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
# {flag: its default, where it is not PaddleNLP's}.
DEFAULTS: Mapping[str, object] = {
    "recompute_use_reentrant": True,
    "amp_custom_black_list": [
        *("reduce_sum", "softmax_with_cross_entropy", "c_softmax_with_cross_entropy"),
        *("elementwise_div", "sin", "cos"),
    ],
    "amp_custom_white_list": [
        *("lookup_table", "lookup_table_v2", "flash_attn", "matmul", "matmul_v2", "fused_gemm_epilogue"),
    ],
}
