"""Fused operators are put on PaddleFormers' layers and taken off again; nothing else of the model changes."""

import numpy as np
import pytest
from fused_models.comparison import built, random_batch, results
from fused_models.formers import BY_NAME, FAMILIES

from llm_npu.surgery import apply_fused_kernel, apply_fused_kernels, remove_fused_kernels
from llm_npu.surgery.apply import applied_kernels

pytestmark = pytest.mark.sampled

LLAMA = BY_NAME["llama"]


def attributes(model):
    """The names of all attributes of every layer instance."""
    return {name: sorted(vars(layer)) for name, layer in model.named_sublayers(include_self=True)}


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.model_type != "ernie4_5_moe"], ids=str)
def test_removed_kernels_leave_no_trace(family):
    model = built(family, dtype="bfloat16")
    expected, names = results(family, model, random_batch()), attributes(model)
    report = apply_fused_kernels(model, family.operators, strict=True)
    assert set(report.operators()) == set(family.operators)
    fused = results(family, model, random_batch())
    assert any(np.any(fused[name] != values) for name, values in expected.items())  # another computation
    remove_fused_kernels(model)
    assert attributes(model) == names
    assert_same_bits(results(family, model, random_batch()), expected)


def test_removed_kernels_leave_no_trace_on_ernies_experts():
    """Without them its own block is made of kernels for CUDA, so that only attributes can be compared."""
    model = BY_NAME["ernie4.5-moe"].build()
    names = attributes(model)
    apply_fused_kernels(model, strict=True)
    assert attributes(model) != names
    remove_fused_kernels(model)
    assert attributes(model) == names


def test_a_fused_model_loads_and_saves_the_upstream_checkpoint(tmp_path):
    expected = results(LLAMA, built(LLAMA), random_batch())
    model = built(LLAMA, "all")
    model.save_pretrained(str(tmp_path))
    loaded = type(model).from_pretrained(str(tmp_path), dtype="float32")
    for name, value in {"_attn_implementation": "eager", "fuse_rms_norm": False}.items():
        setattr(loaded.config, name, value)
    loaded.eval()
    assert_same_bits(results(LLAMA, loaded, random_batch()), expected)


def test_context_parallel_attention_is_not_fused():
    model = built(LLAMA)
    for layer in model.sublayers():
        if type(layer).__name__ == "LLamaAttention":
            layer.config.context_parallel_size = 2
    report = apply_fused_kernels(model)
    assert report.reasons("attention") == [
        "context-parallel attention exchanges keys and values between processes"
    ]
    assert report.count("rms_norm") == 5


def test_every_model_built_is_fused_until_it_is_switched_off():
    """What a front end's run begins with: it builds the model itself."""
    apply_fused_kernel(use_fused_add_rms_norm=True)
    try:
        assert applied_kernels(LLAMA.build()) == sorted(LLAMA.operators)
    finally:
        apply_fused_kernel(*[False] * 7)
    assert applied_kernels(LLAMA.build()) == []
