"""Language models of every dense family, small enough for a test; their fields are those of a config.json."""

import numpy as np
import paddle

from llm_npu.models import families, settings, upstream_config
from llm_npu.models.paddlenlp.families import config_class, model_class

VOCABULARY, POSITIONS = 128, 64

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
}
_COMMON = SIZES | {
    "initializer_range": 0.3,  # far apart logits, so that no two are equal after rounding
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,  # wavelengths below 8 stay, above 32 are four times as long
}
FIELDS = {
    "llama": {"model_type": "llama", "rope_theta": 10000.0},
    "llama-tied": {"model_type": "llama", "rope_theta": 5e5, "tie_word_embeddings": True},
    "llama3": {"model_type": "llama", "rope_theta": 1e3, "rope_scaling": _LLAMA3},
    "llama-linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6},
    "qwen2-tied": {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "rope_theta": 10000.0, "sliding_window": None},
    "gemma": {"model_type": "gemma", "head_dim": 16, "hidden_act": "gelu", "tie_word_embeddings": True},
    "gpt": {
        "model_type": "gpt",
        "num_key_value_heads": None,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "tie_word_embeddings": True,
    },
}
FAMILIES = ("llama", "qwen2", "mistral")


def fields_of(name: str) -> dict:
    """The fields of its config.json."""
    return _COMMON | FIELDS[name]


def build(name: str, dtype: str = "float32", seed: int = 5, **changes):
    """The model, with random norms and biases: ones and zeros would hide what is left out."""
    paddle.seed(seed)
    fields = upstream_config.from_upstream(fields_of(name) | changes, "config.json")
    kind = fields.pop("model_type")
    fields = settings.rotary.as_library(families.FAMILIES[kind], fields)
    model = model_class(kind)(config_class(kind).from_dict(fields))
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name:
            parameter.set_value(paddle.rand(parameter.shape) + 0.5)
        elif parameter_name.endswith("bias"):
            parameter.set_value(paddle.randn(parameter.shape) * 0.3)
    model.to(dtype=dtype)
    model.eval()  # returns nothing before Paddle 3.1
    return model


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random tokens, none of them special."""
    draw = np.random.default_rng(seed)
    return [draw.integers(3, VOCABULARY, length).tolist() for length in lengths]


def logits_of(model, ids) -> np.ndarray:
    """float32 [B, T, V]."""
    with paddle.no_grad():
        return model(input_ids=paddle.to_tensor(ids), use_cache=False)[0].astype("float32").numpy()
