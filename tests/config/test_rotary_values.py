"""The rotary tables of every family under every scaling that it accepts, against float64.

The formulas are those of transformers' modeling_rope_utils: YaRN is arXiv 2309.00071, LongRoPE 2402.13753.
"""

import json
import math

import numpy as np
import paddle
import pytest

from llm_npu.models import families, presets, weights
from llm_npu.models.families import FAMILIES

pytestmark = pytest.mark.sampled

POSITIONS, ORIGINAL, THETA, LONG = (
    256,
    64,
    10000.0,
    400,
)  # tokens; the last is longer than the model's positions
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 4},
    "ntk": {"rope_type": "ntk", "factor": 2.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 16,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.5],
        "long_factor": [3.0],
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
}


def frequencies(scaling, dim, length):
    """(the frequency of each pair, the factor of both tables) for rows of ``length`` tokens."""
    exponents = np.arange(0, dim, 2) / dim
    plain, kind = THETA**-exponents, scaling.get("rope_type", scaling.get("type"))
    factor = scaling["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "ntk":
        return (THETA * factor ** (dim / (dim - 2))) ** -exponents, 1.0
    if kind == "dynamic":
        stretch = factor * max(length, POSITIONS) / POSITIONS - (factor - 1)
        return (THETA * stretch ** (dim / (dim - 2))) ** -exponents, 1.0
    if kind == "longrope":
        [stretch] = scaling["long_factor" if length > ORIGINAL else "short_factor"][:1]
        return plain / stretch, math.sqrt(1 + math.log(factor) / math.log(ORIGINAL))
    if kind == "llama3":
        turns = ORIGINAL * plain / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return (1 - smooth) * plain / factor + smooth * plain, 1.0
    assert kind == "yarn"
    low, high = (
        dim * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(THETA))
        for turns in (scaling["beta_fast"], 1)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1


def folder(path, family, scaling):
    sizes = {**family.defaults, **family.presets[family.tiny], "rope_scaling": scaling}
    sizes |= {
        "num_hidden_layers": 1,
        "vocab_size": 64,
        "rope_theta": THETA,
        "max_position_embeddings": POSITIONS,
    }
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": family.model_type, **sizes}))
    return path


def table(model, length):
    """(cosines, sines), [length, head size], of the model's first layer."""
    rotary = next(layer for layer in model.sublayers() if "Rotary" in type(layer).__name__)
    x = paddle.zeros([1, length, 1, 2])
    if "seq_len" in rotary.forward.__code__.co_varnames:  # PaddleNLP
        tables = rotary(x, seq_len=length)
    else:
        tables = rotary(x, paddle.arange(length)[None])
    return [
        table_of_kind.numpy().astype(np.float64).reshape(-1, table_of_kind.shape[-1])[:length]
        for table_of_kind in tables
    ]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_tables_are_those_of_the_scaling(tmp_path, model_type):
    family = FAMILIES[model_type]
    for kind in family.rope_scalings:
        scaling = dict(SCALINGS[kind])
        stated = {**family.defaults, **family.presets[family.tiny]}
        dim = stated.get("qk_rope_head_dim") or stated.get("head_dim")
        dim = dim or stated["hidden_size"] // stated["num_attention_heads"]
        for name in ("short_factor", "long_factor"):
            if name in scaling:
                scaling[name] = scaling[name] * (dim // 2)
        model = families.new_model(presets.model_config(str(folder(tmp_path / kind, family, scaling))))
        weights.save_config(model, tmp_path / kind)  # what is saved asks for the same
        assert presets.unknown_fields(str(tmp_path / kind)) == []
        again = families.new_model(presets.model_config(str(tmp_path / kind)))
        for first, other in zip(table(model, POSITIONS), table(again, POSITIONS), strict=True):
            np.testing.assert_array_equal(first, other)
        for length in (8, POSITIONS, LONG) if kind in ("dynamic", "longrope") else (8, POSITIONS):
            inverse, factor = frequencies(scaling, dim, length)
            angles = np.outer(np.arange(length), inverse)
            for actual, wanted in zip(table(model, length), (np.cos(angles), np.sin(angles)), strict=True):
                error = np.abs(actual - factor * np.concatenate([wanted, wanted], axis=-1)).max()
                assert error < 1e-4, (kind, length)  # of float32 angles up to 400


def test_a_model_without_scaling_has_plain_tables(tmp_path):
    for family in (
        family_with_rotary
        for family_with_rotary in FAMILIES.values()
        if "rotary" in family_with_rotary.layers
    ):
        path = folder(tmp_path / family.model_type, family, None)
        cosines, _ = table(families.new_model(presets.model_config(str(path))), POSITIONS)
        inverse = THETA ** -(np.arange(0, cosines.shape[-1], 2) / cosines.shape[-1])
        wanted = np.cos(np.outer(np.arange(POSITIONS), inverse))
        np.testing.assert_allclose(cosines, np.concatenate([wanted, wanted], axis=-1), atol=1e-4)
