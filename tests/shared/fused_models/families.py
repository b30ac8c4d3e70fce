"""The models of PaddleNLP that are fused, at tiny size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import paddle.distributed as dist
from paddle.distributed import fleet
from paddlenlp.transformers.llama import modeling_auto, modeling_network

from fused_models.experts import loop_over_experts
from fused_models.weights import VOCABULARY, fill
from llm_npu.models.families import cast
from llm_npu.models.paddlenlp import families
from llm_npu.patches import layers

POSITIONS = 64

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "max_position_embeddings": POSITIONS,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# One head size that fused_rope of paddle-custom-npu takes, and one that it does not.
MANY_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
GROUPED_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
QWEN2_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 160,
}
GPT = {
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "ignore_index": -100,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@dataclass(frozen=True, eq=False)  # so that it is a key of caches
class Family:
    """A row of tests: a model of a family, ``settings`` of its configuration, ``row`` of docs/fusing.md.

    ``other``: a class of the model for auto-parallel, and ``criterion``, which makes its loss. ``prepare`` is
    called before the model is built.
    """

    name: str
    model_type: str
    settings: Mapping[str, object]
    row: str = ""
    other: type | None = None
    criterion: Callable | None = None
    prepare: Callable[[], None] = lambda: None

    @property
    def model(self) -> type:
        return self.other or families.model_class(self.model_type)

    @property
    def operators(self) -> tuple[str, ...]:
        """Those of "auto"; fused_models.losses has the loss."""
        operators_of_layers = families.FAMILIES[self.model_type].layers
        return tuple(name for name in operators_of_layers if name != "linear_cross_entropy")

    @property
    def title(self) -> str:
        """Its row in the table of docs/fusing.md."""
        return self.row or families.FAMILIES[self.model_type].title

    def __str__(self) -> str:
        return self.name

    @property
    def truth(self) -> Family:
        """The family whose model computes the same function and runs in float64."""
        return self if self.criterion is None else BY_NAME["llama-gqa"]

    def caches(self, operator: str | None) -> bool:
        """Whether its model, with ``operator`` fused, generates text with a cache."""
        return True

    def plain(self, model) -> None:
        """Its own MoE layers stop with an error on Paddle 3.3.1."""
        loop_over_experts(model)

    def build(self, dtype: str = "float32", **attributes):
        """The model on the current device, in evaluation mode; ``attributes`` of its configuration."""
        self.prepare()
        config = families.config_class(self.model_type)(**{**SIZES, **self.settings})
        for name, value in attributes.items():
            setattr(config, name, value)
        model = self.model(config)
        fill(model)
        cast(model, dtype)
        model.eval()
        return model


def one_process_mesh() -> dist.ProcessMesh:
    return dist.ProcessMesh([[0]], dim_names=["dp", "mp"])


LLAMA, SCALED = "Llama 1, 2 and 3", "Llama, scaled rotary embedding"
FAMILIES = (
    Family("llama", "llama", MANY_HEADS, LLAMA),
    Family("llama-gqa", "llama", GROUPED_HEADS, LLAMA),
    Family("llama-tied", "llama", {**MANY_HEADS, "tie_word_embeddings": True}, LLAMA),
    Family(
        "llama-joined",
        "llama",
        {**GROUPED_HEADS, "fuse_attention_qkv": True, "fuse_attention_ffn": True},
        LLAMA,
    ),
    *(
        Family(
            f"llama-{kind}",
            "llama",
            {**MANY_HEADS, "rope_scaling_type": kind, "rope_scaling_factor": 2.0},
            SCALED,
        )
        for kind in ("linear", "ntk", "dynamic_ntk")
    ),
    Family("llama-llama3", "llama", {**MANY_HEADS, "rope_scaling": LLAMA3_SCALING}, SCALED),
    Family("qwen2", "qwen2", GROUPED_HEADS),
    Family("qwen2-tied", "qwen2", {**MANY_HEADS, "tie_word_embeddings": True}),
    Family("mistral", "mistral", {**GROUPED_HEADS, "sliding_window": 4}),
    Family("qwen2-moe", "qwen2_moe", {**GROUPED_HEADS, **QWEN2_MOE}),
    Family("qwen2-moe-normed", "qwen2_moe", {**MANY_HEADS, **QWEN2_MOE, "norm_topk_prob": True}),
    Family("mixtral", "mixtral", {**GROUPED_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("gpt", "gpt", GPT),
    Family("gemma", "gemma", {**GROUPED_HEADS, "head_dim": 64}, prepare=layers.fix_gemma_rotary_dtype),
    Family(
        "llama-auto",
        "llama",
        GROUPED_HEADS,
        "Llama of modeling_auto",
        modeling_auto.LlamaForCausalLM3DAuto,
        modeling_auto.LlamaPretrainingCriterion3DAuto,
        prepare=lambda: fleet.auto.set_mesh(one_process_mesh()),
    ),
    Family(
        "llama-network",
        "llama",
        GROUPED_HEADS,
        "Llama of modeling_network",
        modeling_network.LlamaForCausalLMNet,
        modeling_network.LlamaPretrainingCriterionNet,
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}
CELLS = [(family, operator) for family in FAMILIES for operator in (*family.operators, "all")]
