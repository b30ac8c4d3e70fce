"""The model of each family, its weights and tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llm_npu.models.paddlenlp.families import FAMILIES

DEVIATION = 0.02  # of the weights


@dataclass(frozen=True)
class ModelSize:
    """``prompt`` tokens are prefilled before ``new_tokens`` are generated; training uses ``length``."""

    family: str
    hidden: int = 768
    layers: int = 4
    vocabulary: int = 16000
    length: int = 1024
    batch: int = 1
    heads: int = 12
    key_value_heads: int = 4
    intermediate: int = 2048
    experts: int = 0
    experts_per_token: int = 0
    prompt: int = 512
    new_tokens: int = 32

    @property
    def label(self) -> str:
        experts = f" E{self.experts}/{self.experts_per_token}" if self.experts else ""
        heads = f"N{self.heads}/{self.key_value_heads}"
        return (
            f"H{self.hidden} L{self.layers} {heads}{experts} V{self.vocabulary} S{self.length} B{self.batch}"
        )

    @property
    def tokens(self) -> int:
        """The tokens of a training step."""
        return self.batch * self.length

    def fields(self) -> dict[str, object]:
        """The configuration, as in config.json."""
        family = FAMILIES[self.family]
        fields = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "max_position_embeddings": max(self.length, self.prompt + self.new_tokens),
            "seq_length": self.length,
            "use_cache": False,  # training; generation turns it on
            **dict.fromkeys(("fuse_attention_qkv", "fuse_attention_ffn"), family.fuses_projections),
        }
        if experts := family.experts:
            sizes = filter(None, (experts.size, experts.shared))
            fields |= dict.fromkeys(sizes, self.intermediate)
            fields |= {experts.number: self.experts, experts.per_token: self.experts_per_token}
        return fields

    def fill(self, parameters: dict) -> None:
        """Set the parameters, by name, to weights that are the same in every process."""
        random = np.random.default_rng(0)
        for name in sorted(parameters):
            shape = tuple(parameters[name].shape)
            if len(shape) > 1:
                parameters[name].set_value(random.standard_normal(shape, np.float32) * np.float32(DEVIATION))

    def samples(self) -> np.ndarray:
        """Random tokens [B, S]; the labels are the same tokens, shifted by one."""
        return np.random.default_rng(1).integers(3, self.vocabulary, (self.batch, self.length + 1))

    def prompts(self) -> np.ndarray:
        """Random tokens [B, prompt]."""
        return np.random.default_rng(2).integers(3, self.vocabulary, (self.batch, self.prompt))


SPECIAL = {
    "llama": {"layers": 12, "key_value_heads": 12},  # 110 million parameters
    "mixtral": {"intermediate": 1024, "experts": 8, "experts_per_token": 2},
    "qwen2_moe": {"intermediate": 512, "experts": 16, "experts_per_token": 4},
}
SIZES = {family: ModelSize(family, **SPECIAL.get(family, {})) for family in FAMILIES}
QUICK = {
    name: replace(
        size,
        hidden=64,
        layers=2,
        vocabulary=128,
        length=32,
        heads=2,
        key_value_heads=min(size.key_value_heads, 2),
        intermediate=96,
        experts=min(size.experts, 4),
        experts_per_token=min(size.experts_per_token, 2),
        prompt=8,
        new_tokens=4,
    )
    for name, size in SIZES.items()
}
