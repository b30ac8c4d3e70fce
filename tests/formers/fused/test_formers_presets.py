"""The presets of PaddleFormers' families: as many parameters as published, and tiny ones that are fused."""

import json
import math

import paddle
import pytest

from llm_npu.models import families, upstream_config, weights
from llm_npu.models.paddleformers.families import FAMILIES, config_class, model_class
from llm_npu.models.presets import PRESETS, model_config
from llm_npu.models.pretrained import load_model
from llm_npu.surgery import apply_fused_kernels

# Millions of parameters: Qwen3, arXiv 2505.09388; the model cards of ERNIE-4.5-0.3B; DeepSeek-V3, arXiv
# 2412.19437, without the layer that predicts a second token.
PUBLISHED = {
    "llama3-8b": 8_030,
    "qwen2.5-7b": 7_616,
    "qwen3-0.6b": 596,
    "qwen3-1.7b": 1_721,
    "qwen3-4b": 4_022,
    "qwen3-8b": 8_191,
    "qwen3-14b": 14_768,
    "qwen3-32b": 32_762,
    "qwen3-30b-a3b": 30_532,
    "ernie4.5-0.3b": 361,
    "deepseek-v3-671b": 671_026,
}
DENSE_LAYERS = 3  # at the beginning of DeepSeek-V3


def family_of(preset):
    return next(family for family in FAMILIES.values() if preset in family.presets)


def parameters(family, preset, layers):
    """Those of a model with as many ``layers``, which are never allocated."""
    fields = {**family.defaults, **family.presets[preset], "num_hidden_layers": layers}
    with paddle.LazyGuard():
        model = model_class(family.model_type)(config_class(family.model_type)(**fields))
    return sum(
        math.prod(shape_of.shape)
        for shape_of in {id(parameter): parameter for parameter in model.parameters()}.values()
    )


@pytest.mark.parametrize(("preset", "millions"), PUBLISHED.items())
def test_presets_have_the_published_number_of_parameters(preset, millions, on_cpu):
    family = family_of(preset)
    layers = config_class(family.model_type)(**family.presets[preset]).num_hidden_layers
    few, more = (parameters(family, preset, DENSE_LAYERS + count) for count in (0, 1))
    assert (few + (layers - DENSE_LAYERS) * (more - few)) // 10**6 == pytest.approx(millions, abs=1)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_tiny_presets_are_fused(family):
    model = model_class(family.model_type)(config_class(family.model_type)(**family.presets[family.tiny]))
    report = apply_fused_kernels(model, family.layers, strict=True)
    assert set(report.operators()) == set(family.layers)


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_is_read_from_its_own_file(name, tmp_path):
    config = model_config(name)
    upstream_config.save(config, tmp_path, "bfloat16")
    read = model_config(str(tmp_path))
    assert type(read) is type(config)
    fields = {*upstream_config.SHARED_FIELDS, *FAMILIES[config.model_type].defaults, *PRESETS[name]}
    assert {field: getattr(read, field) for field in fields} == {
        field: getattr(config, field) for field in fields
    }


def test_a_new_model_has_the_deviation_of_its_configuration(on_cpu):
    """ERNIE's models, and the stages of every family, set another one in the configuration."""
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
    config = config_class("ernie4_5")(**sizes, **heads, initializer_range=0.01)
    model = families.new_model(config)
    assert model.config.initializer_range == 0.01
    assert float(model.model.embed_tokens.weight.std()) == pytest.approx(0.01, rel=0.05)


def test_a_head_is_not_lost_where_the_configuration_says_nothing_about_it(tmp_path, on_cpu):
    """transformers takes such a Llama for one with a head of its own; PaddleFormers itself does not."""
    fields = {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    fields |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields | {"tie_word_embeddings": False}))
    model = model_class("llama")(model_config(str(tmp_path)))
    weights.save(model, tmp_path)
    file.write_text(json.dumps(fields))
    ids = paddle.to_tensor([[3, 4, 5]])
    difference = load_model(tmp_path)(input_ids=ids)[0] - model(input_ids=ids)[0]
    assert float(difference.abs().max()) < 1e-6  # products round by where their operands lie in memory


def test_experts_with_statistics_run_in_the_dtype_of_their_file(on_npu):
    """A model that is read from a file is cast as a whole, and with it the counts of its router."""
    config = model_config("ernie4.5-moe-tiny", num_hidden_layers=2)
    config.vocab_size, config.hidden_size, config.intermediate_size = 64, 64, 64
    config.num_attention_heads = config.num_key_value_heads = 1
    model = model_class(config.model_type)(config).to(dtype="bfloat16")
    model.eval()
    apply_fused_kernels(model)
    with paddle.no_grad():
        logits = model(input_ids=paddle.to_tensor([[3, 4, 5, 6]])).logits
    assert list(logits.shape) == [1, 4, 64] and bool(paddle.isfinite(logits.astype("float32")).all())
