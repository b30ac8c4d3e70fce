"""Llama written out in numpy, for tests of checkpoints."""

import numpy as np


def logits_of(w: dict[str, np.ndarray], ids: np.ndarray, config: dict) -> np.ndarray:
    """Hugging Face's Llama in float64: x W^T everywhere, rotated halves, consecutive query heads share a
    key/value head."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    heads, length = config["num_attention_heads"], len(ids)
    head_dim, groups = config["hidden_size"] // heads, heads // config["num_key_value_heads"]

    def norm(x, gamma):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gamma

    frequency = config["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.tile(np.arange(length)[:, None] * frequency, 2)[:, None]  # [T, 1, D]

    def rotate(x):
        first, second = np.split(x, 2, axis=-1)
        return x * np.cos(angle) + np.concatenate([-second, first], -1) * np.sin(angle)

    x = w["model.embed_tokens.weight"][ids]
    later = np.triu(np.full((length, length), -np.inf), 1)
    for i in range(config["num_hidden_layers"]):
        layer = {name.split(f"layers.{i}.")[1]: a for name, a in w.items() if f"layers.{i}." in name}
        y = norm(x, layer["input_layernorm.weight"])
        query, key, value = (
            (y @ layer[f"self_attn.{part}_proj.weight"].T).reshape(length, -1, head_dim) for part in "qkv"
        )
        key, value = (np.repeat(a, groups, axis=1) for a in (rotate(key), value))
        scores = np.einsum("qnd,knd->nqk", rotate(query), key) / np.sqrt(head_dim) + later
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attention = np.einsum("nqk,knd->qnd", scores / scores.sum(-1, keepdims=True), value)
        x = x + attention.reshape(length, -1) @ layer["self_attn.o_proj.weight"].T
        y = norm(x, layer["post_attention_layernorm.weight"])
        gate = y @ layer["mlp.gate_proj.weight"].T
        y = gate / (1 + np.exp(-gate)) * (y @ layer["mlp.up_proj.weight"].T)
        x = x + y @ layer["mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
