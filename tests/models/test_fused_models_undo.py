"""Fused operators are put on layers and taken off again; nothing else of the model changes."""

import copy

import numpy as np
import paddle
import pytest
from fused_models.comparison import array, built, random_batch, results
from fused_models.families import BY_NAME, FAMILIES
from paddlenlp.transformers import BertConfig, BertModel

from llm_npu.surgery import apply_fused_kernels, remove_fused_kernels

pytestmark = pytest.mark.sampled

LLAMA = BY_NAME["llama"]


def identities(model):
    """Which objects the parameters and entries of the state are, by name."""
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    return parameters, list(model.state_dict())


def attributes(model):
    """The names of all attributes of every layer instance."""
    return {name: sorted(vars(layer)) for name, layer in model.named_sublayers(include_self=True)}


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if "moe" not in f.operators], ids=str)
def test_removed_kernels_leave_no_trace(family, dtype):
    model = built(family, dtype=dtype)
    expected, names, objects = results(family, model, random_batch()), attributes(model), identities(model)
    forward = type(model).forward
    apply_fused_kernels(model, family.operators)
    assert identities(model) == objects
    assert type(model).forward is forward
    fused = results(family, model, random_batch(), "all")
    assert any(
        np.any(fused[name] != values) for name, values in expected.items()
    )  # it was another computation
    remove_fused_kernels(model)
    assert attributes(model) == names
    assert identities(model) == objects
    assert_same_bits(results(family, model, random_batch()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2-moe", "mixtral"])
def test_removed_kernels_leave_no_trace_on_experts(name):
    """PaddleNLP's own blocks stop with an error, so that only attributes can be compared."""
    model = BY_NAME[name].build()
    names, objects = attributes(model), identities(model)
    apply_fused_kernels(model, BY_NAME[name].operators)
    assert identities(model) == objects
    assert attributes(model) != names
    remove_fused_kernels(model)
    assert attributes(model) == names
    assert identities(model) == objects


def test_applying_twice_is_applying_once():
    model = built(LLAMA, "all")
    expected, names = results(LLAMA, model, random_batch(), "all"), attributes(model)
    apply_fused_kernels(model, LLAMA.operators)
    assert attributes(model) == names
    assert_same_bits(results(LLAMA, model, random_batch(), "all"), expected)
    remove_fused_kernels(model)
    assert attributes(model) == attributes(built(LLAMA))


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2", "mistral"])
def test_a_deep_copy_is_the_upstream_model(name):
    family = BY_NAME[name]
    expected = results(family, built(family), random_batch())
    model = built(family, "all")
    fused = results(family, model, random_batch(), "all")
    other = copy.deepcopy(model)
    assert attributes(other) == attributes(built(family))
    assert_same_bits(results(family, model, random_batch(), "all"), fused)
    with paddle.no_grad():
        for parameter in model.parameters():
            parameter.set_value(paddle.zeros_like(parameter))
    assert_same_bits(results(family, other, random_batch()), expected)


def test_a_fused_model_loads_and_saves_the_upstream_checkpoint(tmp_path):
    expected = results(LLAMA, built(LLAMA), random_batch())
    built(LLAMA, "all").save_pretrained(str(tmp_path))
    loaded = LLAMA.model.from_pretrained(str(tmp_path))
    loaded.eval()
    assert_same_bits(results(LLAMA, loaded, random_batch()), expected)
    again = built(LLAMA, "all")
    with paddle.no_grad():
        for parameter in again.parameters():
            parameter.set_value(paddle.zeros_like(parameter))
    missing, unexpected = again.set_state_dict(loaded.state_dict())
    assert not missing and not unexpected
    for mine, other in zip(again.parameters(), loaded.parameters(), strict=True):
        np.testing.assert_array_equal(array(mine), array(other))


def bert():
    return BertModel(BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2))


@pytest.mark.parametrize("model", [lambda: paddle.nn.Linear(2, 2), bert], ids=["Linear", "Bert"])
def test_a_model_without_sites_is_refused_with_the_nearest_that_is_supported(model):
    with pytest.raises(ValueError, match=r"(?s)(Linear|BertModel).*(Llama|Qwen2|Mistral|Mixtral)"):
        apply_fused_kernels(model())


def test_an_operator_that_the_model_has_not_is_refused():
    with pytest.raises(ValueError, match="moe"):
        apply_fused_kernels(built(LLAMA), kernels=["moe"])


@pytest.mark.parametrize(
    "arguments", [{"kernels": ["rmsnorm"]}, {"kernels": "all"}, {"use_fused_rms": False}]
)
def test_unknown_names_are_refused_with_those_that_there_are(arguments):
    model = built(LLAMA)
    names = attributes(model)
    with pytest.raises(ValueError, match=r"rms_norm"):
        apply_fused_kernels(model, **arguments)
    assert attributes(model) == names


def test_switches_leave_operators_out():
    model = built(LLAMA)
    report = apply_fused_kernels(model, use_fused_rms_norm=False, use_npu_fusion_attention=False)
    assert {row.operator for row in report.rows if row.fused} == {"rotary", "swiglu"}


def test_strict_refuses_a_site_that_cannot_be_fused():
    model = built(BY_NAME["qwen2"])
    model.qwen2.layers[1].mlp.act_fn = paddle.nn.functional.gelu
    model.qwen2.layers[1].mlp.fuse_swiglu = False
    names = attributes(model)
    with pytest.raises(ValueError, match=r"(?s)qwen2\.layers\.1\.mlp"):
        apply_fused_kernels(model, strict=True)
    assert attributes(model) == names
    report = apply_fused_kernels(model)
    (row,) = [row for row in report.rows if not row.fused]
    assert (row.layer, row.operator) == ("qwen2.layers.1.mlp", "swiglu")
    assert row.reason
