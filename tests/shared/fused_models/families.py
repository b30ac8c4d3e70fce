"""The models of PaddleNLP that are fused, at tiny size, with weights that depend on their names only.

Two models with the same parameters thus compute the same function, whatever their classes, dtypes and
devices. Every weight is representable in bfloat16, so that one float64 truth serves all dtypes.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddlenlp.transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)
from paddlenlp.transformers.llama import modeling_auto, modeling_network

DENSE = ("attention", "rms_norm", "rotary", "swiglu")
EXPERTS = (*DENSE, "moe")
POSITIONS = 64
VOCABULARY = 128

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
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@dataclass(frozen=True, eq=False)  # so that it is a key of caches
class Family:
    """``row``: the README's row. ``settings``: of its configuration. ``operators``: those it has.
    ``criterion``: makes the loss where the model does not. ``prepare``: called before the model is built."""

    name: str
    row: str
    model: type
    config: type
    settings: Mapping[str, object]
    operators: tuple[str, ...] = DENSE
    criterion: Callable | None = None
    prepare: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        return self.name

    @property
    def truth(self) -> Family:
        """The family whose model computes the same function and runs in float64."""
        return self if self.criterion is None else BY_NAME["llama-gqa"]

    def build(self, dtype: str = "float32", **attributes):
        """The model on the current device, in evaluation mode; ``attributes`` of its configuration."""
        self.prepare()
        config = self.config(**{**SIZES, **self.settings})
        for name, value in attributes.items():
            setattr(config, name, value)
        model = self.model(config)
        fill(model)
        model.to(dtype=dtype)
        model.eval()
        return model


def fill(model) -> None:
    """Gives every parameter of ``model`` its values."""
    with paddle.no_grad():
        for name, parameter in model.named_parameters():
            values = paddle.to_tensor(initial(name, tuple(parameter.shape)))
            if parameter.is_dist():
                values = dist.shard_tensor(values, parameter.process_mesh, parameter.placements)
                paddle.assign(values.astype(parameter.dtype), parameter)
            else:
                parameter.set_value(values.astype(parameter.dtype))


@functools.cache
def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The initial values of the parameter ``name``, float32 that bfloat16 holds exactly."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if "norm" in name:
        return in_bfloat16(1 + 0.2 * noise)
    if ".gate.weight" in name:  # of a router: experts far apart, so that no rounding makes another choice
        return in_bfloat16(noise)
    return in_bfloat16(0.1 * noise)


def in_bfloat16(values: np.ndarray) -> np.ndarray:
    """``values`` rounded to bfloat16, to nearest even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def one_process_mesh() -> dist.ProcessMesh:
    return dist.ProcessMesh([[0]], dim_names=["dp", "mp"])


def _set_mesh() -> None:
    fleet.auto.set_mesh(one_process_mesh())


def _llama(name: str, row: str, **settings) -> Family:
    return Family(name, row, LlamaForCausalLM, LlamaConfig, {**MANY_HEADS, **settings})


def _scaled(kind: str) -> Family:
    return _llama(
        f"llama-{kind}", "Llama, scaled rotary embedding", rope_scaling_type=kind, rope_scaling_factor=2.0
    )


LLAMA, QWEN2 = "Llama 1, 2 and 3", "Qwen2"
FAMILIES = (
    _llama("llama", LLAMA),
    _llama("llama-gqa", LLAMA, **GROUPED_HEADS),
    _llama("llama-tied", LLAMA, tie_word_embeddings=True),
    _llama("llama-joined", LLAMA, **GROUPED_HEADS, fuse_attention_qkv=True, fuse_attention_ffn=True),
    _scaled("linear"),
    _scaled("ntk"),
    _scaled("dynamic_ntk"),
    _llama("llama-llama3", "Llama, scaled rotary embedding", rope_scaling=LLAMA3_SCALING),
    Family("qwen2", QWEN2, Qwen2ForCausalLM, Qwen2Config, GROUPED_HEADS),
    Family("qwen2-tied", QWEN2, Qwen2ForCausalLM, Qwen2Config, {**MANY_HEADS, "tie_word_embeddings": True}),
    Family("mistral", "Mistral", MistralForCausalLM, MistralConfig, {**GROUPED_HEADS, "sliding_window": 4}),
    Family(
        "qwen2-moe", "Qwen2-MoE", Qwen2MoeForCausalLM, Qwen2MoeConfig, {**GROUPED_HEADS, **QWEN2_MOE}, EXPERTS
    ),
    Family(
        "qwen2-moe-normed",
        "Qwen2-MoE",
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig,
        {**MANY_HEADS, **QWEN2_MOE, "norm_topk_prob": True},
        EXPERTS,
    ),
    Family(
        "mixtral",
        "Mixtral",
        MixtralForCausalLM,
        MixtralConfig,
        {**GROUPED_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
        EXPERTS,
    ),
    Family(
        "llama-auto",
        "Llama of modeling_auto",
        modeling_auto.LlamaForCausalLM3DAuto,
        LlamaConfig,
        GROUPED_HEADS,
        criterion=modeling_auto.LlamaPretrainingCriterion3DAuto,
        prepare=_set_mesh,
    ),
    Family(
        "llama-network",
        "Llama of modeling_network",
        modeling_network.LlamaForCausalLMNet,
        LlamaConfig,
        GROUPED_HEADS,
        criterion=modeling_network.LlamaPretrainingCriterionNet,
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}
CELLS = [(family, operator) for family in FAMILIES for operator in (*family.operators, "all")]
