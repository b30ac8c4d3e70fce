"""The models of PaddleFormers that are fused, at tiny size."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import paddle

from fused_models.ernie_experts import loop_over_ernies_experts
from fused_models.weights import VOCABULARY, fill
from llm_npu.models.paddleformers import families

POSITIONS = 64

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    "use_cache": False,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Fields that no constructor takes: the library's own definition, which runs on every device.
UNFUSED = {"_attn_implementation": "eager", "fuse_rms_norm": False, "fuse_swiglu": False}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GROUPED_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SLIDING_WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}  # the second layer
QWEN3_MOE = {"head_dim": 64, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
# More than a batch has choices, so that some get no token.
MANY_EXPERTS = {
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 32,
    "num_experts": 40,
    "num_experts_per_tok": 1,
}
DEEPSEEK_V3 = {
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "moe_intermediate_size": 96,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "rope_scaling": YARN_SCALING | {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
}
ERNIE_MOE = {
    "head_dim": 64,
    "moe_intermediate_size": 96,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 1,
    "moe_group": "dummy",
    "num_nextn_predict_layers": 0,
}


@dataclass(frozen=True, eq=False)  # so that it is a key of caches
class Family:
    """A row of tests: a model of a family, and ``settings`` of its configuration."""

    name: str
    model_type: str
    settings: Mapping[str, object]

    criterion = None  # its forward returns the loss

    def caches(self, operator: str | None) -> bool:
        """Whether its model, with ``operator`` fused, generates text with a cache.

        Where the cache holds a window of keys, the unfused model hides those of the mask's first columns.
        That of DeepSeek-V3 joins heads instead of tokens.
        """
        if self.model_type == "deepseek_v3":
            return False
        return operator is not None or "sliding_window" not in self.settings

    @property
    def model(self) -> type:
        return families.model_class(self.model_type)

    @property
    def operators(self) -> tuple[str, ...]:
        """Those of "auto"; fused_models.losses has the loss."""
        operators_of_layers = families.FAMILIES[self.model_type].layers
        return tuple(name for name in operators_of_layers if name != "linear_cross_entropy")

    @property
    def title(self) -> str:
        """Its row in the table of docs/fusing.md."""
        return families.FAMILIES[self.model_type].title

    def __str__(self) -> str:
        return self.name

    @property
    def truth(self) -> Family:
        """The family whose model computes the same function and runs in float64."""
        return self

    def plain(self, model) -> None:
        """ERNIE's own MoE layers call CUDA kernels."""
        loop_over_ernies_experts(model)

    def build(self, dtype: str = "float32", **attributes):
        """The model on the current device, in evaluation mode; ``attributes`` of its configuration."""
        config = families.config_class(self.model_type)(**{**SIZES, **self.settings})
        for name, value in {**UNFUSED, **attributes}.items():
            setattr(config, name, value)
        # Not model.to(dtype), which rounds the frequencies of the rotary embedding, too.
        before = paddle.get_default_dtype()
        paddle.set_default_dtype(dtype)
        try:
            model = self.model(config)
        finally:
            paddle.set_default_dtype(before)
        if dtype == "float64":
            model.to(dtype=dtype)  # routers are float32 whatever the default
        fill(model)
        model.eval()
        return model


FAMILIES = (
    Family("llama", "llama", {}),
    Family("llama-gqa", "llama", GROUPED_HEADS),
    Family("llama-tied", "llama", {"tie_word_embeddings": True}),
    Family("llama-llama3", "llama", {"rope_scaling": LLAMA3_SCALING}),
    Family("qwen2", "qwen2", GROUPED_HEADS),
    Family("qwen2-window", "qwen2", SLIDING_WINDOW),
    Family("qwen3", "qwen3", {**GROUPED_HEADS, "head_dim": 64}),
    Family("qwen3-tied", "qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    Family("qwen3-yarn", "qwen3", {"head_dim": 64, "rope_scaling": YARN_SCALING}),
    Family("qwen3-window", "qwen3", {**SLIDING_WINDOW, "head_dim": 64}),
    Family("qwen3-moe", "qwen3_moe", {**GROUPED_HEADS, **QWEN3_MOE}),
    Family("qwen3-moe-normed", "qwen3_moe", {**QWEN3_MOE, "norm_topk_prob": True}),
    Family("deepseek-v3", "deepseek_v3", DEEPSEEK_V3),
    Family("deepseek-v3-normed", "deepseek_v3", {**DEEPSEEK_V3, "norm_topk_prob": True, "n_group": 1}),
    Family("ernie4.5", "ernie4_5", {**GROUPED_HEADS, "head_dim": 64}),
    Family("ernie4.5-moe", "ernie4_5_moe", {**GROUPED_HEADS, **ERNIE_MOE}),
    Family("ernie4.5-tied", "ernie4_5", {"head_dim": 128, "tie_word_embeddings": True}),
)
BY_NAME = {family.name: family for family in FAMILIES}


@functools.cache
def without_router_losses(family: Family) -> Family:
    """ERNIE's count the tokens of padding, whose hidden states nobody defines; other families have none."""
    if family.model_type != "ernie4_5_moe":
        return family
    losses = ("router_aux_loss_coef", "router_z_loss_coef", "moe_orthogonal_loss_lambda")
    return replace(family, settings={**family.settings, **dict.fromkeys(losses, 0.0)})
