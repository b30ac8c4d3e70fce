"""Residual sums with the norms that read them: which sums are fused, and what reaches the norms."""

import gc
import types
from dataclasses import replace

import numpy as np
import paddle
import pytest
from fused_models.comparison import assert_as_accurate, built, random_batch, results, truth, unfused
from fused_models.families import BY_NAME

import paddle_fused
from llm_npu.surgery import apply_fused_kernels
from llm_npu.surgery.batch import Batch
from llm_npu.surgery.explain import explain
from llm_npu.surgery.residual_sums import NORMS, READS, WAITING, CannotRewrite, with_sums

LLAMA = BY_NAME["llama"]
LAYERS = 2
SUMS = 2 * LAYERS
BATCH = Batch(2, 16, "float32")
ON = {"use_fused_add_rms_norm": True}


def calls(model, **inputs) -> dict[str, int]:
    """How often a forward and backward pass calls the norms' operators."""
    paddle_fused.reset_dispatch_log()
    results(LLAMA, model, random_batch(), "add_rms_norm", **inputs)
    counted = {}
    for record in paddle_fused.dispatch_log():
        counted[record.operator] = counted.get(record.operator, 0) + record.count
    return {name: counted[name] for name in ("add_rms_norm", "rms_norm") if name in counted}


def nothing_waits(model) -> bool:
    return all(layer.__dict__.get(WAITING) is None for layer in model.sublayers())


def test_every_sum_is_fused_and_only_the_first_norm_stands_alone(device):
    model = built(LLAMA)
    report = apply_fused_kernels(model, ["add_rms_norm", "rms_norm"], strict=True)
    assert report.count("add_rms_norm") == SUMS and report.count("rms_norm") == SUMS + 1
    assert calls(model) == {"add_rms_norm": SUMS, "rms_norm": 1}
    assert nothing_waits(model)


def test_norms_that_are_not_fused_take_the_result_too():
    model = built(LLAMA, "add_rms_norm")
    assert calls(model) == {"add_rms_norm": SUMS}
    paddle_fused.reset_dispatch_log()


def test_it_is_off_by_default_where_no_kernel_computes_both(on_cpu):
    model = built(LLAMA)
    assert "add_rms_norm" in apply_fused_kernels(model).operators()  # pf_add_rms_norm
    assert "add_rms_norm" not in apply_fused_kernels(model, use_fused_add_rms_norm=False).operators()
    paddle.set_device("npu:0")
    model = built(LLAMA)
    report = apply_fused_kernels(model)
    assert "add_rms_norm" not in report.operators()
    lines = explain(model, report, BATCH)
    lines = [line for line in lines if line.operator == "add_rms_norm"]
    assert len(lines) == SUMS and {line.backend for line in lines} == {"upstream"}
    assert all("off by default" in line.reason for line in lines)
    with paddle_fused.use_backend("native"):
        assert apply_fused_kernels(model).count("add_rms_norm") == SUMS
    assert apply_fused_kernels(model, **ON).count("add_rms_norm") == SUMS


@pytest.mark.sampled
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_norm_has_one_row_in_the_table(recomputed):
    """Where layers are recomputed, only a plain hidden state leaves them."""
    model = built(LLAMA)
    report = apply_fused_kernels(model, ["add_rms_norm", "rms_norm"])
    batch = replace(BATCH, recomputed=recomputed)
    rows = {line.layers: line.operator for line in explain(model, report, batch)}
    across = "rms_norm" if recomputed else "add_rms_norm"
    assert rows == {
        "llama.layers.0.input_layernorm": "rms_norm",
        "llama.layers.0.post_attention_layernorm": "add_rms_norm",
        "llama.layers.1.input_layernorm": across,
        "llama.layers.1.post_attention_layernorm": "add_rms_norm",
        "llama.norm": across,
    }


@pytest.mark.sampled
@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_keeps_a_plain_hidden_state(reentrant):
    model = LLAMA.build(recompute_granularity="full", recompute_use_reentrant=reentrant)
    apply_fused_kernels(model, ["add_rms_norm", "rms_norm"])
    model.train()
    model.recompute_enable()
    # Each layer twice: the sum and norm within it, its first norm, and once the last norm.
    assert calls(model) == {"add_rms_norm": 2 * LAYERS, "rms_norm": 2 * LAYERS + 1}
    assert nothing_waits(model)


def test_hidden_states_are_those_of_the_plain_model():
    states_of = {}
    for operator in (None, "add_rms_norm"):
        model = built(LLAMA, operator)
        ids = paddle.to_tensor(random_batch().ids)
        with paddle.no_grad():
            states = model(ids, output_hidden_states=True, return_dict=True).hidden_states
        states_of[operator] = [state.numpy() for state in states]
    assert len(states_of[None]) == LAYERS + 1
    for plain, fused in zip(states_of[None], states_of["add_rms_norm"], strict=True):
        np.testing.assert_allclose(fused, plain, atol=1e-5)


def test_a_norm_that_is_given_another_tensor_computes_its_own():
    model = built(LLAMA, "add_rms_norm")
    model.llama.layers[1].register_forward_pre_hook(lambda _layer, inputs: (inputs[0] * 1.0, *inputs[1:]))
    fused = results(LLAMA, model, random_batch(), "add_rms_norm")
    assert_as_accurate(fused, unfused(LLAMA, "npu:0", "float32"), truth(LLAMA), "float32")


def test_hooks_of_layers_see_the_whole_gradient():
    gradients_of = {}
    for operator in (None, "add_rms_norm"):
        model, gradients = built(LLAMA, operator), []
        for layer in model.llama.layers:
            layer.register_forward_post_hook(
                lambda _layer, _inputs, output, kept=gradients: output.register_hook(kept.append) and None
            )
        results(LLAMA, model, random_batch(), operator)
        gradients_of[operator] = [gradient.numpy() for gradient in gradients]
    assert len(gradients_of[None]) == LAYERS
    for plain, fused in zip(gradients_of[None], gradients_of["add_rms_norm"], strict=True):
        np.testing.assert_allclose(fused, plain, atol=1e-6)


def test_hooks_of_norms_see_the_result():
    model, seen = built(LLAMA, "add_rms_norm"), []
    norm = model.llama.layers[0].post_attention_layernorm
    norm.register_forward_post_hook(lambda _layer, inputs, output: seen.append((inputs[0], output)))
    results(LLAMA, model, random_batch(), "add_rms_norm")
    ((total, out),) = seen
    expected = paddle_fused.rms_norm(total, norm.weight, norm.variance_epsilon)
    np.testing.assert_allclose(out.numpy(), expected.numpy(), atol=1e-6)


def test_layers_that_a_pipeline_drops_are_not_kept():
    model = built(LLAMA, "add_rms_norm")
    dropped = model.llama.layers._sub_layers.pop("1")
    reference = dropped.__dict__[NORMS]["post_attention_layernorm"]
    assert reference() is not None
    del dropped
    gc.collect()
    assert reference() is None
    model.llama.norm = paddle.nn.Identity()
    ids = paddle.to_tensor(random_batch().ids)
    model.llama(ids)
    assert nothing_waits(model)


def test_a_layer_with_another_forward_is_not_fused_and_the_others_are():
    model = built(LLAMA)
    layer = model.llama.layers[0]
    upstream = type(layer).forward
    layer.forward = types.MethodType(lambda self, *args, **kwargs: upstream(self, *args, **kwargs), layer)
    report = apply_fused_kernels(model, ["add_rms_norm"])
    rows = {row.layer: row.fused for row in report.rows}
    (reason,) = report.reasons("add_rms_norm")
    assert "replaced on the instance" in reason
    assert rows == {
        "llama.layers.0.post_attention_layernorm": False,
        "llama.layers.1.input_layernorm": False,
        "llama.layers.1.post_attention_layernorm": True,
        "llama.norm": True,
    }
    assert calls(model) == {"add_rms_norm": 2}


def three_sums(self, residual, x):
    return residual + x + residual


def one_sum(self, residual, x):
    return x * 2 + residual


def test_a_function_with_other_sums_is_not_rewritten():
    with pytest.raises(CannotRewrite, match="adds residual 2 times, not 1"):
        with_sums(three_sums, READS)
    with pytest.raises(CannotRewrite, match="cannot be read"):
        with_sums(eval("lambda self, residual: residual + 1"), READS)
    namespace = {}
    exec("def unreadable(self, residual): return residual + 1", namespace)
    with pytest.raises(CannotRewrite, match="cannot be read"):
        with_sums(namespace["unreadable"], READS)
    layer = types.SimpleNamespace(**{NORMS: {}})
    assert with_sums(one_sum, READS)(layer, 1, 2) == 5


def test_mixed_dtypes_are_added_as_before():
    """amp.decorate may leave norms in float32 under bfloat16 activations: not one of the operator's cases."""
    model = built(LLAMA, "add_rms_norm", "bfloat16")
    for layer in model.sublayers():
        if type(layer).__name__ == "LlamaRMSNorm":
            layer.to(dtype="float32")
    with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
        assert calls(model) == {}
