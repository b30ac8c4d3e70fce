"""Names that differ between the libraries, for PaddleFormers. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "PaddleFormers"
# Trackers that only this library has, and the packages they need.
TRACKERS = {"swanlab": "swanlab"}
# Fields of a model's configuration.
TENSOR_PARALLEL, PIPELINE_PARALLEL = "tensor_model_parallel_size", "pipeline_model_parallel_size"
UNDIVIDED = {"moe_group": "dummy"}  # further fields of a model that is whole on one process
DIVIDED = {"moe_group": "mp"}  # fields of a model that is split over processes, as are its experts
LENGTH = "max_sequence_length"  # length of the rows of a batch
# Fields that are not part of a config.json.
UNSAVED: tuple[str, ...] = (
    *(TENSOR_PARALLEL, PIPELINE_PARALLEL, LENGTH, "rope_parameters", "use_cache", "use_fast_layer_norm"),
    *("fuse_attention_qkv", "fuse_attention_ffn", "use_flash_attention"),
    *("moe_group_origin", "moe_rank", "moe_world_size"),  # of the process, set by pipeline stages
)
# Matrices stored as in Hugging Face files; all others are transposed.
UNTRANSPOSED = ("embed_tokens.weight", "lm_head.weight")
# How a batch passes document masks to the model (``Collator.mask``); None: depends on fused attention.
PACKED: str | None = "rows"
# Fields that switch off the library's default fused operators.
UNFUSED = {"fuse_rms_norm": False}
# Whether ``generate`` passes the prompt to a streamer before the new tokens.
STREAMS_PROMPT = True
# {training argument of the library: flag}, if the names differ.
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
# {flag: default}, if it differs from PaddleNLP's.
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
