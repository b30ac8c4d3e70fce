"""The presets of PaddleFormers' families: as many parameters as published, and tiny ones that are fused."""

import math

import paddle
import pytest

from llm_npu.models.paddleformers.families import FAMILIES, config_class, model_class
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
    fields = {**family.presets[preset], "num_hidden_layers": layers}
    with paddle.LazyGuard():
        model = model_class(family.model_type)(config_class(family.model_type)(**fields))
    return sum(math.prod(each.shape) for each in {id(each): each for each in model.parameters()}.values())


@pytest.mark.default_run(every=True)
@pytest.mark.parametrize(("preset", "millions"), PUBLISHED.items())
def test_presets_have_the_published_number_of_parameters(preset, millions, on_cpu):
    family = family_of(preset)
    layers = config_class(family.model_type)(**family.presets[preset]).num_hidden_layers
    few, more = (parameters(family, preset, DENSE_LAYERS + each) for each in (0, 1))
    assert (few + (layers - DENSE_LAYERS) * (more - few)) // 10**6 == pytest.approx(millions, abs=1)


@pytest.mark.default_run(every=True)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_tiny_presets_are_fused(family):
    model = model_class(family.model_type)(config_class(family.model_type)(**family.presets[family.tiny]))
    report = apply_fused_kernels(model, strict=True)
    assert set(report.operators()) == set(family.layers)
