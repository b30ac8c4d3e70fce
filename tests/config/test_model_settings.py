"""What a config.json asks for is applied or refused, in the families of both libraries."""

import copy
import json
import math
import typing

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llm_npu import config
from llm_npu.core.errors import UserError
from llm_npu.models import checks, presets
from llm_npu.models import family as family_record
from llm_npu.models.families import FAMILIES
from llm_npu.models.paddleformers.families import FAMILIES as FORMERS
from llm_npu.models.paddleformers.vision_language import FAMILIES as VISION_LANGUAGE
from llm_npu.models.paddlenlp.families import FAMILIES as NLP
from llm_npu.models.settings import fields as of_fields
from llm_npu.models.settings import rotary

pytestmark = pytest.mark.sampled

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 32768}


def checked(family, **fields):
    """The fields of a config.json of ``family``, after everything that does not need its library."""
    normalized = rotary.normalized({**SIZES, **fields}, family, "config.json")
    checks.check_file(family, normalized, "config.json")
    return normalized


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ("linear", "'linear', but must have null or a mapping"),
        (["linear"], "must have null or a mapping"),
        (2.0, "must have null or a mapping"),
        ({"rope_type": "linear"}, "linear without factor"),
        ({"type": "llama3"}, "llama3 without factor, low_freq_factor, high_freq_factor, original"),
        ({"factor": 2.0}, "no kind"),
        ({"rope_type": "linear", "type": "dynamic", "factor": 2.0}, "kinds dynamic and linear"),
        ({"rope_type": 3, "factor": 2.0}, "has rope_scaling 3"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "default with 'mrope_section'"),
        ({"rope_type": "linear", "factor": 2.0, "mscale": 1.0}, "linear with 'mscale'"),
        ({"rope_type": "su", "factor": 2.0}, "su, but"),
        *(({"rope_type": "linear", "factor": value}, "factor .* a number of 1 or more")
          for value in (-1, 0, 0.5, "x", "2.0", True, [2], math.inf, math.nan)),
        (LLAMA3 | {"low_freq_factor": 4.0}, "below high_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": 8192.5}, "a whole number of 1 or more"),
        (LLAMA3 | {"factor": None}, "without factor"),
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}, "make them equal"),
        ({"full_attention": {"rope_type": "default"}}, "for each kind of layer"),
    ],
)  # fmt: skip
def test_odd_scalings_are_refused(scaling, words):
    for family in (NLP["llama"], FORMERS["llama"], FORMERS["ernie4_5"]):
        for name in ("rope_scaling", "rope_parameters"):
            with pytest.raises(UserError, match=words):
                checked(family, **{name: copy.deepcopy(scaling)})


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
         "set max_position_embeddings to 16384"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": 1}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "truncate 1"),
        ({"rope_type": "yarn", "factor": 2.0, "attention_factor": 0}, "attention_factor 0"),
        (LONGROPE | {"short_factor": [1.0] * 31}, "31 numbers, but it must have one for each of 32"),
        (LONGROPE | {"long_factor": "x"}, "long_factor 'x'"),
        (LONGROPE | {"long_factor": [1.0] * 31 + [0]}, "above 0"),
        ({name: value for name, value in LONGROPE.items() if name != "factor"}, "without factor or"),
    ],
)  # fmt: skip
def test_odd_scalings_of_other_kinds_are_refused(scaling, words):
    with pytest.raises(UserError, match=words):
        checked(FORMERS["llama"], rope_scaling=copy.deepcopy(scaling))


def test_two_scalings_of_one_model_are_refused():
    two, four = ({"rope_type": "linear", "factor": factor} for factor in (2.0, 4.0))
    with pytest.raises(UserError, match="two scalings"):
        checked(FORMERS["llama"], rope_scaling=two, rope_parameters=four)
    with pytest.raises(UserError, match="two values of rope_theta"):
        checked(FORMERS["llama"], rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    with pytest.raises(UserError, match="two scalings"):
        checked(NLP["llama"], rope_scaling=two, rope_scaling_type="linear", rope_scaling_factor=4.0)
    with pytest.raises(UserError, match="linear without factor"):
        checked(NLP["llama"], rope_scaling_type="linear")
    with pytest.raises(UserError, match=r"rope_scaling_factor .* without rope_scaling_type"):
        checked(NLP["llama"], rope_scaling_factor=4.0)
    for family in (NLP["qwen2"], FORMERS["llama"]):
        with pytest.raises(UserError, match="rope_scaling_type 'linear'; accepted: none"):
            checked(family, rope_scaling_type="linear", rope_scaling_factor=4.0)
    merged = checked(FORMERS["llama"], rope_parameters={**two, "rope_theta": 5e5}, rope_scaling=two)
    assert (merged["rope_scaling"], merged["rope_theta"]) == (two, 5e5)


def test_every_kind_of_every_family_reaches_its_class():
    scalings = [
        {"type": "linear", "factor": 2},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "finetuned": True},
        LONGROPE,
        LLAMA3,
        {"rope_type": "ntk", "factor": 2.0},
    ]
    for family in (*NLP.values(), *FORMERS.values()):
        for scaling in scalings:
            kind = scaling.get("rope_type") or scaling["type"]
            if kind not in family.rope_scalings:
                with pytest.raises(UserError, match=f"has rope_scaling {kind}"):
                    checked(family, rope_scaling=scaling)
                continue
            library_fields = rotary.as_library(family, checked(family, rope_scaling=scaling))
            if own := family.rope_scalings[kind]:
                assert (library_fields["rope_scaling_type"], library_fields["rope_scaling_factor"]) == (
                    own,
                    scaling["factor"],
                )
                continue
            name = "rope_parameters" if family.reads_rope_parameters else "rope_scaling"
            assert (library_fields[name]["rope_type"], library_fields[name]["factor"]) == (
                kind,
                scaling["factor"],
            )


REFUSED = [
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config", [*NLP, *FORMERS]),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", [*NLP, *FORMERS]),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rot", [*FORMERS]),
    ({"logit_scale": 0.5}, "logit_scale", [*FORMERS]),
    ({"logits_scaling": 8.0}, "logits_scaling", [*FORMERS]),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping", [*FORMERS]),
    ({"residual_multiplier": 0.2}, "residual_multiplier", [*FORMERS]),
    ({"hidden_dropout": 0.1}, "hidden_dropout", [*NLP, *FORMERS]),
    ({"attention_dropout": 0.1}, "attention_dropout", ["ernie4_5", "ernie4_5_moe"]),
    ({"attention_dropout": 1.0}, "at least 0 and below 1", [*FORMERS]),
    ({"attention_dropout": "x"}, "at least 0 and below 1", [*FORMERS]),
    ({"layer_types": ["linear_attention"] * 2}, "layers of linear_attention", [*FORMERS]),
    ({"layer_types": ["sliding_attention"] * 2}, "layers of sliding_attention", [*FORMERS]),
    ({"layer_types": "full_attention"}, "a list of kinds", [*FORMERS]),
    ({"use_sliding_window": True}, "use_sliding_window", ["qwen3_moe", "llama", "deepseek_v3", "ernie4_5"]),
    ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window 0", ["qwen2", "qwen3"]),
    ({"sliding_window": 4096}, "sliding_window", ["llama", "ernie4_5", "deepseek_v3"]),
    ({"attention_bias": False}, "always has those biases", ["qwen2"]),
    ({"qkv_bias": False}, "always has those biases", ["qwen2"]),
    ({"attention_bias": True}, "does not have those biases", ["ernie4_5"]),
    ({"mlp_bias": True}, "mlp_bias", ["qwen3_moe", "deepseek_v3", "ernie4_5_moe"]),
    ({"tie_word_embeddings": "false"}, "true or false", [*FORMERS]),
    ({"tie_word_embeddings": True}, "tie_word_embeddings", ["deepseek_v3"]),
    ({"scoring_func": "softmax"}, "accepted: sigmoid", ["deepseek_v3"]),
    ({"head_dim": 32}, "qk_rope_head_dim 64", ["deepseek_v3"]),
    ({"vision_config": {"depth": 2}}, "vision_config", [*FORMERS]),
    ({"alibi": True}, "alibi", [*FORMERS]),
]


@pytest.mark.parametrize(("fields", "words", "families"), REFUSED)
def test_what_a_class_ignores_is_refused(fields, words, families):
    for name in families:
        for records in (FORMERS, NLP):
            if name in records and (records is FORMERS or name not in FORMERS):
                with pytest.raises(UserError, match=words):
                    checked(records[name], **fields)


@pytest.mark.parametrize(
    ("fields", "words", "families"),
    [
        ({"attention_dropout": 0.1}, "attention_dropout", ["llama", "mistral"]),
        ({"attention_bias": True}, "attention_bias|biases", ["llama", "mistral", "mixtral"]),
        ({"mlp_bias": True}, "mlp_bias", ["llama", "qwen2", "mistral", "mixtral", "qwen2_moe"]),
        ({"attention_bias": False}, "always has", ["qwen2", "qwen2_moe"]),
        ({"use_sliding_window": True}, "use_sliding_window", ["llama", "qwen2", "qwen2_moe"]),
        ({"sliding_window": "x"}, "sliding_window 'x'", ["mistral", "mixtral"]),
    ],
)
def test_what_a_class_of_paddlenlp_ignores_is_refused(fields, words, families):
    for name in families:
        with pytest.raises(UserError, match=words):
            checked(NLP[name], **fields)


def test_values_that_ask_for_nothing_are_accepted():
    neutral = {
        **{name: values[0] for name, values in of_fields.NEUTRAL.items() if values},
        **dict.fromkeys([name for name, values in of_fields.NEUTRAL.items() if not values]),
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"] * 2,
        "pretraining_tp": 1,
    }
    for family in (*NLP.values(), *FORMERS.values()):
        assert checked(family, **neutral)["rope_scaling"] is None


def test_fields_that_nothing_reads_are_reported(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", **SIZES, "my_scale": 2.0, "my_flag": False, "use_cache": True})
    )
    [note] = config.read(["--model_name_or_path", str(tmp_path)]).notes
    assert "my_scale" in note and "my_flag" not in note
    for name, family in FAMILIES.items():  # a checkpoint of this project has none
        stated = {**family.defaults, **family.presets[family.tiny], "model_type": name}
        assert of_fields.unknown(family, stated) == []


OTHERS = ["rope_scaling", "rope_parameters", "layer_types", "head_dim", "hidden_act", "eos_token_id", "dtype"]
KEYS = st.sampled_from(
    [*of_fields.NEUTRAL, *of_fields.BOOLS, *checks.SIZES, *checks.NUMBERS, *rotary.OWN, *OTHERS]
)
NUMBERS = st.sampled_from([10**30, -(10**30), 1e308, math.nan, math.inf, -1, 0, 1, 2, 0.5])
TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(["linear", "llama3", "silu", "full_attention"]))
PARTS = st.sampled_from(["rope_type", "type", "factor", "rope_theta", "x"])
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(PARTS, inner, max_size=4)),
    max_leaves=6,
)


@pytest.mark.parametrize("model_type", FAMILIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, ODD, max_size=5))
@example({"rope_scaling": "linear"})
@example({"head_dim": "x"})
@example({"head_dim": {"factor": None}})
@example({"num_hidden_layers": 10**9})
def test_generated_configurations_are_read_or_refused(tmp_path, model_type, odd):
    """Beside a traceback nothing may be dropped: what was accepted has the value that was asked for."""
    family = FAMILIES[model_type]
    sizes = dict(family.presets[family.tiny])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **sizes, **odd}))
    try:
        loaded = presets.model_config(str(tmp_path))
    except UserError as error:
        assert len(str(error)) < 1000
        return
    for name in (*checks.SIZES, *of_fields.BOOLS):
        if odd.get(name) is not None and name in (*checks.SIZES, *family.reads, *family.defaults):
            assert getattr(loaded, name) == odd[name], name


def test_each_way_of_a_class_is_listed_once_for_its_operator():
    for ways in family_record.VARIANTS.values():
        listed = typing.get_args(ways)
        assert len(listed) == len(set(listed))
    for family in (*NLP.values(), *FORMERS.values(), *VISION_LANGUAGE.values()):
        for operator, classes in family.layers.items():
            assert set(classes.values()) <= set(typing.get_args(family_record.VARIANTS[operator]))
