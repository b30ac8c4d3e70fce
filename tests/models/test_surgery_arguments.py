"""Inputs of fused models: masks of every form against the upstream model, and refusals."""

import numpy as np
import paddle
import pytest
from tiny_models import build, prompts

from llm_npu.models import weights
from llm_npu.surgery import NotFused, apply_fused_kernels, kernel, registry, remove_fused_kernels
from llm_npu.surgery.apply import applied_kernels
from llm_npu.surgery.compat import apply_fused_kernel
from paddle_fused import masks

pytestmark = pytest.mark.sampled

LENGTH = 12


def answers(model, tokens, **options):
    """Logits of the upstream and of the fused model."""
    outputs = []
    for change in (remove_fused_kernels, apply_fused_kernels):
        change(model)
        with paddle.no_grad():
            outputs.append(model(input_ids=tokens, use_cache=False, **options)[0].numpy())
    return outputs


@pytest.fixture
def tokens():
    return paddle.to_tensor(prompts(LENGTH, LENGTH))


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_a_mask_of_pairs_means_what_it_means_to_the_upstream_model(family, rank, tokens):
    """Two documents that see both ways; Mistral makes every mask causal."""
    keep = paddle.to_tensor(np.kron(np.eye(2), np.ones((LENGTH // 2, LENGTH // 2))).astype("int64"))
    keep = keep.expand([2, LENGTH, LENGTH] if rank == 3 else [2, 1, LENGTH, LENGTH])
    upstream, fused = answers(build(family), tokens, attention_mask=keep)
    np.testing.assert_allclose(fused, upstream, atol=1e-4 * np.abs(upstream).max())


@pytest.mark.parametrize("shape", [[2, LENGTH - 1], [2, LENGTH + 1], [LENGTH]])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_a_mask_of_another_length_is_refused(family, shape, tokens):
    model = build(family)
    apply_fused_kernels(model)
    with pytest.raises(ValueError, match=r"attention_mask has shape .* accepted for 12 "):
        model(input_ids=tokens, attention_mask=paddle.ones(shape, "int64"))


def test_numbers_to_add_to_the_scores_are_refused(tokens):
    model = build("llama")
    apply_fused_kernels(model)
    added = paddle.triu(paddle.full([1, 1, LENGTH, LENGTH], -1e9), 1)
    with pytest.raises(ValueError, match="attention_mask has negative values"):
        model(input_ids=tokens, attention_mask=added)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_attention_weights_are_the_upstream_models(family, tokens):
    model, outputs = build(family), []
    for change in (remove_fused_kernels, apply_fused_kernels):
        change(model)
        outputs.append(model(input_ids=tokens, output_attentions=True, use_cache=False, return_dict=True))
    upstream, fused = outputs
    assert len(fused.attentions) == len(upstream.attentions) == 2
    for fused_weights, upstream_weights in zip(fused.attentions, upstream.attentions, strict=True):
        np.testing.assert_allclose(fused_weights.numpy(), upstream_weights.numpy(), atol=1e-5)


def test_attention_weights_of_mistral_are_refused(tokens):
    model = build("mistral")
    apply_fused_kernels(model)
    with pytest.raises(ValueError, match="output_attentions"):
        model(input_ids=tokens, output_attentions=True)


@pytest.mark.parametrize("kernels", [["attention"], ["rotary"], "auto"])
def test_a_layer_with_a_forward_of_its_own_stays_and_works(kernels, tokens):
    model = build("llama")
    attention = model.llama.layers[0].self_attn

    class Own(type(attention)):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    attention.__class__ = Own
    expected = model(input_ids=tokens, use_cache=False)[0].numpy()
    report = apply_fused_kernels(model, kernels)
    (reason,) = report.reasons(report.operators()[0])
    assert "Own" in reason and "LlamaAttention" in reason
    logits = model(input_ids=tokens, use_cache=False)[0].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


def test_a_forward_that_was_replaced_on_the_instance_stays(tokens):
    model = build("llama")
    model.llama.norm.forward = lambda hidden: hidden
    (reason,) = apply_fused_kernels(model).reasons("rms_norm")
    assert "replaced on the instance" in reason


def test_moe_kernels_only_leave_models_without_experts_alone():
    apply_fused_kernel(False, False, False, False, True)
    try:
        assert remove_fused_kernels(build("llama")) == 0
    finally:
        apply_fused_kernel(*[False] * 7)


def test_a_plain_loop_has_a_loss_without_logits_where_it_is_switched_on(tokens):
    losses = {}
    for switch in (None, True):
        apply_fused_kernel(*[False] * 7, use_fused_linear_cross_entropy=switch)
        try:
            model = build("llama")
        finally:
            apply_fused_kernel(*[False] * 7)
        assert applied_kernels(model) == ["linear_cross_entropy"] * bool(switch)
        model.train()
        optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
        losses[switch] = []
        for _ in range(3):
            loss, logits = model(input_ids=tokens, labels=tokens)[:2]
            assert (logits is None) is bool(switch)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses[switch].append(float(loss))
    np.testing.assert_allclose(losses[True], losses[None], rtol=1e-4)
    assert losses[True][2] < losses[True][0]


def test_a_mask_object_goes_to_the_layers_as_it_is(tokens):
    model = build("mistral")
    apply_fused_kernels(model)
    packed = model(input_ids=tokens[:1], attention_mask=masks.documents([5, 7]), use_cache=False)[0]
    alone = model(input_ids=tokens[:1, :5], use_cache=False)[0]
    np.testing.assert_allclose(packed[:, :5].numpy(), alone.numpy(), atol=1e-4)


def test_a_head_that_only_the_configuration_ties_is_not_lost():
    model = build("mistral")
    model.config.tie_word_embeddings = True
    with pytest.raises(ValueError, match="a separate head"):
        weights.to_upstream(model)


def test_a_kernel_of_ones_own_takes_part(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.scan()))

    @kernel("my_norm", known_as="npu_fused_my_norm", switch="use_my_norm")
    def replace(layer):
        return NotFused("it has a bias") if isinstance(layer, paddle.nn.LayerNorm) else None

    model = paddle.nn.Sequential(paddle.nn.LayerNorm(4))
    assert apply_fused_kernels(model).reasons("my_norm") == ["it has a bias"]
    with pytest.raises(ValueError, match="has no layer"):
        apply_fused_kernels(model, use_my_norm=False)


def test_what_is_no_layer_is_refused():
    with pytest.raises(ValueError, match="model is a NoneType"):
        apply_fused_kernels(None)
