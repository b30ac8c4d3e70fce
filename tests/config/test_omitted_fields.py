"""What a config.json does not state is as in transformers, and presets do not depend on that."""

import dataclasses
import json

import pytest

from llm_npu.models.families import FAMILIES, config_class
from llm_npu.models.presets import PRESETS, fields_of, model_config
from llm_npu.plan.shape import ModelShape, sizes_of_weights

# The fields of ``LlamaConfig()``, ``Qwen2Config()``, ... of transformers 5.3.0.
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
)
DENSE = {
    "llama": (32000, 4096, 11008, 32, 32, 32, 2048, 1e-6, 1e4, False),
    "qwen2": (151936, 4096, 22016, 32, 32, 32, 32768, 1e-6, 1e4, False),
    "qwen3": (151936, 4096, 22016, 32, 32, 32, 32768, 1e-6, 1e4, False),
    "qwen3_moe": (151936, 2048, 6144, 24, 32, 4, 32768, 1e-6, 1e4, False),
    "ernie4_5": (103424, 1024, 3072, 18, 16, 2, 131072, 1e-5, 5e5, True),
    "ernie4_5_moe": (103424, 2560, 12288, 28, 20, 4, 131072, 1e-5, 5e5, True),
    "deepseek_v3": (129280, 7168, 18432, 61, 128, 128, 4096, 1e-6, 1e4, False),
    "mistral": (32000, 4096, 14336, 32, 32, 8, 131072, 1e-6, 1e4, False),
    "mixtral": (32000, 4096, 14336, 32, 32, 8, 131072, 1e-5, 1e6, False),
    "qwen2_moe": (151936, 2048, 5632, 24, 16, 16, 32768, 1e-6, 1e4, False),
    "gemma": (256000, 3072, 24576, 28, 16, 16, 8192, 1e-6, 1e4, True),
    # PaddleNLP's own: transformers calls this family gpt2.
    "gpt": (50304, 768, 3072, 12, 12, None, 512, None, None, True),
}
MORE = {
    "gemma": {"head_dim": 256, "attention_dropout": 0.0},
    "gpt": {
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        "num_key_value_heads": None,  # as many as heads
    },
    "qwen2": {"attention_dropout": 0.0},
    "qwen3": {"head_dim": 128, "attention_dropout": 0.0},
    "qwen3_moe": {
        **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        **{"norm_topk_prob": False, "decoder_sparse_step": 1, "attention_dropout": 0.0},
        "head_dim": 64,  # null there, which stands for hidden_size / num_attention_heads
    },
    "ernie4_5": {"head_dim": 128},
    "ernie4_5_moe": {
        **{"moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2},
        **{"moe_layer_start_index": 1, "moe_layer_end_index": 27, "moe_layer_interval": 1},
        **{"moe_norm_min": 1e-12, "use_bias": False},
        "num_nextn_predict_layers": 0,  # no field there, and no such layers
    },
    "deepseek_v3": {
        **{"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048},
        **{"n_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3},
        **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "attention_dropout": 0.0},
        **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        **{"v_head_dim": 128, "head_dim": 64},
    },
    "mistral": {"sliding_window": 4096},
    "mixtral": {
        **{"num_local_experts": 8, "num_experts_per_tok": 2, "attention_dropout": 0.0},
        "sliding_window": None,
    },
    "qwen2_moe": {
        **{"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408},
        **{"shared_expert_intermediate_size": 5632, "norm_topk_prob": False, "attention_dropout": 0.0},
    },
}


def directory(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def stated(family: str) -> dict[str, object]:
    """The sizes that the planner does not take from defaults, at these."""
    return {name: FAMILIES[family].defaults[name] for name in sizes_of_weights(FAMILIES[family])}


def of(record, names) -> dict[str, object]:
    return {name: getattr(record, name) for name in names}


@pytest.mark.parametrize("family", FAMILIES)
def test_omitted_fields_are_as_in_transformers(family, tmp_path):
    expected = {name: value for name, value in zip(SIZES, DENSE[family], strict=True) if value is not None}
    expected |= {"initializer_range": 0.02}
    expected |= MORE.get(family, {})
    if family == "llama" and FAMILIES[family].has_attention_dropout:  # PaddleFormers' Llama
        expected["attention_dropout"] = 0.0
    assert set(FAMILIES[family].defaults) <= set(expected)
    assert of(model_config(directory(tmp_path, model_type=family)), expected) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_planner_reads_the_same(family, tmp_path):
    path = directory(tmp_path, model_type=family, **stated(family))
    shape, config, experts = ModelShape.of(path), model_config(path), FAMILIES[family].experts
    names = {field.name for field in dataclasses.fields(shape)} & set(FAMILIES[family].defaults)
    if experts:
        names.remove("intermediate_size")  # in the planner that of an expert
        numbers = (shape.num_experts, shape.experts_per_token, shape.intermediate_size)
        assert numbers == tuple(of(config, (experts.number, experts.per_token, experts.size)).values())
        if experts.first_dense:
            dense = (shape.dense_layers, shape.dense_intermediate_size)
            assert dense == (getattr(config, experts.first_dense), config.intermediate_size)
    expected = of(config, names)
    if "head_dim" in names:  # the planner's is a number
        expected["head_dim"] = config.head_dim or config.hidden_size // config.num_attention_heads
    if shape.attention_parameters:  # latent attention: the mean of that of queries and that of values
        query = config.qk_nope_head_dim + config.qk_rope_head_dim
        expected["head_dim"] = (query + config.v_head_dim) // 2
    expected["num_key_value_heads"] = config.num_key_value_heads or config.num_attention_heads
    assert len(names) > 6 and of(shape, names) == expected


@pytest.mark.parametrize("name", PRESETS)
def test_presets_state_what_differs_from_the_librarys_own_defaults(name):
    """So they stay what they are where a default of transformers is another one."""
    fields = fields_of(name)
    family = FAMILIES[fields["model_type"]]
    stated = {
        "architectures": [f"{family.name}ForCausalLM"],
        "tie_word_embeddings": family.defaults["tie_word_embeddings"],  # PaddleFormers ties a Llama's
    }
    stated |= {name: None for name, default in family.defaults.items() if default is None}
    config = config_class(family.model_type).from_dict(stated | family.fixed | fields)
    assert model_config(name).to_dict() == config.to_dict()


@pytest.mark.sampled
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.experts])
def test_the_number_of_experts_has_two_names(family, tmp_path):
    """transformers 5 writes a Qwen3-MoE's as num_local_experts, and so does PaddleFormers."""
    number = FAMILIES[family].experts.number
    sizes = {name: value for name, value in stated(family).items() if name != number}
    path = directory(tmp_path, model_type=family, **sizes, num_local_experts=16)
    assert getattr(model_config(path), number) == 16 and ModelShape.of(path).num_experts == 16
    model_config(path).save_pretrained(path)
    assert getattr(model_config(path), number) == 16


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if "rotary" in family.layers])
def test_rope_parameters_without_theta_have_that_of_the_family(family, tmp_path):
    default = dict(zip(SIZES, DENSE[family], strict=True))["rope_theta"]
    for theta in ({}, {"rope_theta": 3e4}):
        path = directory(tmp_path, model_type=family, rope_parameters={"rope_type": "default", **theta})
        assert model_config(path).rope_theta == theta.get("rope_theta", default)
