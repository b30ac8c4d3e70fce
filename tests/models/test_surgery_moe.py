"""The fused MoE layers of Mixtral and Qwen2-MoE against a plain loop over the experts, and their training."""

import re
from itertools import groupby
from typing import NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from fused_models.comparison import BATCH, LENGTH, random_batch
from fused_models.families import BY_NAME, SIZES
from paddlenlp.peft.lora.lora_layers import LoRALinear
from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock
from precision import assert_as_accurate_as_composed, values

import paddle_fused
from llm_npu import patches
from llm_npu.surgery import apply_fused_kernels, remove_fused_kernels
from llm_npu.surgery.moe import router_scores
from llm_npu.surgery.replacements import moe
from paddle_fused import masks

pytestmark = pytest.mark.sampled

HIDDEN, EXPERTS = SIZES["hidden_size"], 4
# Models of tests/shared/fused_models, and fields of their configurations.
KINDS = {
    "mixtral": ("mixtral", {}),
    "qwen2-moe": ("qwen2-moe", {}),
    "qwen2-moe norm_topk_prob": ("qwen2-moe-normed", {}),
    "qwen2-moe fuse_attention_ffn": ("qwen2-moe", {"fuse_attention_ffn": True}),
}
MODELS = ("mixtral", "qwen2-moe")


@pytest.fixture(autouse=True, scope="module")
def _unfused_models_run():
    patches.apply()


def model_of(kind, dtype="float32", **fields):
    """A model in which experts differ clearly in their probabilities."""
    name, own = KINDS[kind]
    model = BY_NAME[name].build(dtype, **own, **fields)
    model.train()
    return model


def block_of(kind, dtype="float32", **fields):
    """Its first sparse block."""
    return next(layer for layer in model_of(kind, dtype, **fields).sublayers() if hasattr(layer, "experts"))


def set_bias(block, bias):
    """The router's logits get ``bias``: the first feature of ``tokens_of`` is 1."""
    weight = block.gate.weight.detach().clone().astype("float32")
    weight[0] = paddle.to_tensor(bias, "float32")
    block.gate.weight.set_value(weight.astype(block.gate.weight.dtype))


def fused(block, hidden):
    return moe.replace(block).forward(block, hidden)


def plain(block, top_k, hidden, weights):
    """What the block means, every expert multiplying every token, in the dtype of ``hidden`` [B, S, H]."""
    tokens = hidden.reshape([-1, HIDDEN])

    def expert(name, gate="gate_proj", up="up_proj", down="down_proj"):
        if f"{name}.gate_up_fused_proj.weight" in weights:
            both = (tokens @ weights[f"{name}.gate_up_fused_proj.weight"]).chunk(2, -1)
        else:
            both = (tokens @ weights[f"{name}.{gate}.weight"], tokens @ weights[f"{name}.{up}.weight"])
        return (F.silu(both[0]) * both[1]) @ weights[f"{name}.{down}.weight"]

    logits = tokens @ weights["gate.weight"]
    scores = F.softmax(logits.astype("float64" if hidden.dtype == paddle.float64 else "float32"), -1)
    chosen = F.one_hot(paddle.topk(scores.detach(), top_k)[1], EXPERTS).sum(1).astype(scores.dtype)
    probs = scores * chosen
    mixtral = isinstance(block, MixtralSparseMoeBlock)
    if mixtral or block.norm_topk_prob:
        probs = probs / probs.sum(-1, keepdim=True)
    names = ("w1", "w3", "w2") if mixtral else ()
    out = sum(
        probs[:, i : i + 1].astype(hidden.dtype) * expert(f"experts.{i}", *names) for i in range(EXPERTS)
    )
    if mixtral:
        return out.reshape(hidden.shape), logits
    out = out + F.sigmoid(tokens @ weights["shared_expert_gate.weight"]) * expert("shared_expert")
    return out.reshape(hidden.shape), (scores.mean(0) * chosen.mean(0)).sum() * EXPERTS


def measured(run, hidden, weights) -> dict:
    """Both results of ``run()``, and the gradients of their sum weighted at random."""
    results = run()
    random = np.random.default_rng(1)
    loss = sum(
        (result.astype("float64") * paddle.to_tensor(random.standard_normal(result.shape))).sum()
        for result in results
    )
    loss.backward()
    inputs = {**weights, "hidden": hidden}
    gradients = {name: tensor.grad.clone() for name, tensor in inputs.items()}
    for tensor in inputs.values():
        tensor.clear_gradient()
    return {"out": results[0], "second": results[1], **gradients}


def tokens_of(shape, dtype, seed=0):
    array = np.random.default_rng(seed).standard_normal((*shape, HIDDEN)).astype(np.float32)
    array[..., 0] = 1  # the first row of the router's weight is a bias
    hidden = paddle.to_tensor(array).astype(dtype)
    hidden.stop_gradient = False
    return hidden


# Draws of a single token. The gradient of shared_expert_gate is then one number times the token, and chance
# decides how near to the truth the plain loop's is; over many draws the largest errors are compared.
DRAWS = 64
ROUTES = {  # tokens, experts of each, and the router's bias
    "uneven": ([2, 13], 2, [0, 0, 0, 0]),
    "an expert without tokens": ([2, 13], 2, [0, 0, 0, -90]),
    "all tokens on two experts": ([2, 13], 2, [90, 88, 0, 0]),
    "all tokens on one expert": ([2, 13], 1, [0, 0, 90, 0]),
    "one token": ([1, 1], 2, [0, 0, 0, 0]),
}


# Paddle's CPU place has no product of bfloat16, not even the router's.
@pytest.mark.parametrize(("place", "dtype"), [("cpu", "float32"), ("npu", "float32"), ("npu", "bfloat16")])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_block_equals_the_plain_loop(kind, route, place, dtype):
    paddle.set_device(place)
    shape, top_k, bias = ROUTES[route]
    block = block_of(kind, dtype, num_experts_per_tok=top_k)
    set_bias(block, bias)
    weights = dict(block.named_parameters())
    draws = [
        three_of(block, top_k, tokens_of(shape, dtype, seed), weights)
        for seed in range(DRAWS if shape == [1, 1] else 1)
    ]
    for what, names in groupby(sorted(draws[0].fused), lambda name: re.sub(r"\d+", "*", name)):
        names = list(names)  # the weights of all experts together

        def joined(results, names=names):
            return paddle.concat([result[name].flatten() for result in results for name in names])

        actual, composed, truth = map(joined, zip(*draws, strict=True))
        assert_as_accurate_as_composed(actual, composed, truth.numpy(), what)


class Three(NamedTuple):
    """The results of the fused block, of the plain loop in the same dtype, and of the loop in float64."""

    fused: dict
    composed: dict
    truth: dict


def three_of(block, top_k, hidden, weights) -> Three:
    measured_fused = measured(lambda: fused(block, hidden), hidden, weights)
    composed = measured(lambda: plain(block, top_k, hidden, weights), hidden, weights)
    place = paddle.device.get_device()
    paddle.set_device("cpu")
    exact = {
        name: paddle.to_tensor(values(w), stop_gradient=False)
        for name, w in [*weights.items(), ("hidden", hidden)]
    }
    hidden = exact.pop("hidden")
    truth = measured(lambda: plain(block, top_k, hidden, exact), hidden, exact)
    paddle.set_device(place)
    assert measured_fused.keys() == composed.keys() == truth.keys()
    return Three(measured_fused, composed, truth)


def gradients_of(model, **inputs) -> dict:
    """The loss of a batch, and the gradients. ``inputs`` go to the model beside the batch."""
    batch = random_batch()
    loss = model(input_ids=paddle.to_tensor(batch.ids), labels=paddle.to_tensor(batch.labels), **inputs)
    loss = loss[0] if isinstance(loss, tuple) else loss
    loss.backward()
    gradients = {name: values(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    model.clear_gradients()
    return {"loss": values(loss), **gradients}


def assert_close(actual: dict, reference: dict, relative: float):
    assert actual.keys() >= reference.keys()
    for name, expected in reference.items():
        np.testing.assert_allclose(
            actual[name], expected, rtol=0, atol=relative * np.abs(expected).max(), err_msg=name
        )


@pytest.mark.parametrize("seq_aux", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_block_gives_what_the_unfused_block_gives(kind, seq_aux, device):
    block, hidden = block_of(kind, seq_aux=seq_aux), tokens_of([2, 13], "float32")
    for training in (True, False):
        block.train() if training else block.eval()
        out, second = fused(block, hidden)
        upstream_out, upstream_second = block(hidden)
        assert (out.dtype, out.shape, second.dtype, second.shape) == (
            upstream_out.dtype,
            upstream_out.shape,
            upstream_second.dtype,
            upstream_second.shape,
        )
        np.testing.assert_allclose(values(out), values(upstream_out), atol=1e-5)
        np.testing.assert_allclose(values(second), values(upstream_second), rtol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_model_gives_what_the_unfused_model_gives(kind, device):
    model = model_of(kind)
    names = list(model.state_dict())
    unfused = gradients_of(model)
    report = apply_fused_kernels(model, kernels=["moe"], strict=True)
    assert (report.count("moe"), list(model.state_dict())) == (2, names)
    paddle_fused.reset_dispatch_log()
    assert_close(gradients_of(model), unfused, 1e-4)
    ran = {ran.operator: ran.count for ran in paddle_fused.dispatch_log()}
    assert ran == {"moe_token_permute": 2, "grouped_matmul": 6, "swiglu": 2, "moe_token_unpermute": 2}
    remove_fused_kernels(model)
    assert_close(gradients_of(model), unfused, 0)


@pytest.mark.parametrize("kind", MODELS)
def test_auxiliary_loss_is_learnt_from(kind):
    alone = gradients_of(model_of(kind, router_aux_loss_coef=0.0, output_router_logits=True))
    model = model_of(kind, router_aux_loss_coef=0.5, output_router_logits=True)
    unfused = gradients_of(model)
    apply_fused_kernels(model, kernels=["moe"])
    fused = gradients_of(model)
    assert_close(fused, unfused, 1e-4)
    router = next(name for name in fused if name.endswith(("mlp.gate.weight", "moe.gate.weight")))
    assert fused["loss"] > alone["loss"] and (fused[router] != alone[router]).any()


@pytest.mark.parametrize("kind", MODELS)
def test_auxiliary_loss_of_packed_documents(kind):
    """Fine-tuning passes mask objects, which upstream's loss of Mixtral's routers does not accept."""
    packed = masks.documents([6, LENGTH - 6])
    visible = np.broadcast_to(~packed.to_dense(LENGTH), (BATCH, 1, LENGTH, LENGTH))
    model = model_of(kind, router_aux_loss_coef=0.5, output_router_logits=True)
    unfused = gradients_of(model, attention_mask=paddle.to_tensor(visible))
    apply_fused_kernels(model, kernels=["attention", "moe"])
    assert_close(gradients_of(model, attention_mask=packed), unfused, 1e-4)


def test_tokens_of_sequence_parallelism_have_no_loss_per_sequence():
    """[T, H] does not tell where sequences end; without ``output_router_logits`` no one uses the loss."""
    block, hidden = block_of("qwen2-moe", seq_aux=True), tokens_of([2, 13], "float32")
    out, _ = fused(block, hidden.flatten(0, 1))
    np.testing.assert_allclose(values(out), values(fused(block, hidden)[0]).reshape(out.shape), atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_router_losses_of_split_sequences_need_fused_moe_layers(kind):
    model = model_of(kind, output_router_logits=True)
    with pytest.raises(ValueError, match=r"is not fused, .* use_fused_moe"):
        router_scores.share(model, router_scores.TENSOR_PARALLEL)


@pytest.mark.parametrize("kind", KINDS)
def test_block_is_captured_whole(kind, device):
    block, hidden = block_of(kind), tokens_of([2, 13], "float32")
    set_bias(block, [0, 0, 0, -90])  # an expert without tokens, too
    weights = dict(block.named_parameters())
    apply_fused_kernels(block, kernels=["moe"])
    run = measured(lambda: block(hidden), hidden, weights)
    eager = {name: values(tensor) for name, tensor in run.items()}
    spec = paddle.static.InputSpec([None, None, HIDDEN], "float32")
    captured = paddle.jit.to_static(block.forward, input_spec=[spec], full_graph=True)
    run = measured(lambda: captured(hidden), hidden, weights)
    assert_close({name: values(tensor) for name, tensor in run.items()}, eager, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_captured_block_computes_in_the_dtype_of_amp(level, on_npu):
    block, hidden = block_of("mixtral"), tokens_of([2, 13], "float32")
    apply_fused_kernels(block, kernels=["moe"])
    with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
        eager = block(hidden)[0]
        paddle_fused.reset_dispatch_log()
        captured = paddle.jit.to_static(block.forward, full_graph=True)(hidden)[0]
    ran = {entry.dtype for entry in paddle_fused.dispatch_log() if entry.operator == "grouped_matmul"}
    assert ran == {"bfloat16"}
    np.testing.assert_allclose(values(captured), values(eager), atol=2e-2 * np.abs(values(eager)).max())


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("kind", MODELS)
def test_amp_computes_in_bfloat16_as_the_unfused_model(kind, level, on_npu):
    model = model_of(kind)
    exact = gradients_of(model)
    if level == "O2":
        model = paddle.amp.decorate(model, level="O2", dtype="bfloat16")

    def run():
        with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
            return gradients_of(model)

    unfused = run()
    apply_fused_kernels(model, kernels=["moe"])
    paddle_fused.reset_dispatch_log()
    fused = run()
    assert {ran.dtype for ran in paddle_fused.dispatch_log()} == {"bfloat16"}
    for name, expected in exact.items():
        fused_error, unfused_error = (
            np.linalg.norm(variant[name] - expected) for variant in (fused, unfused)
        )
        assert fused_error <= 2 * unfused_error + np.linalg.norm(expected) / 256, name


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_generation_read_the_weights_of_their_experts_only(kind, device):
    block, hidden = block_of(kind), tokens_of([1, 2], "float32")
    expected, _ = fused(block, hidden)
    with paddle.no_grad():
        out, _ = fused(block, hidden)
        assert paddle.equal_all(out, expected)
        chosen = paddle.topk(hidden.reshape([2, HIDDEN]) @ block.gate.weight, 2)[1].flatten().tolist()
        for number in set(range(EXPERTS)) - set(chosen):
            for weight in block.experts[number].parameters():
                weight.set_value(paddle.full_like(weight, np.nan))
        assert paddle.equal_all(fused(block, hidden)[0], expected)


def test_expert_without_tokens_gets_zeros(device):
    block, hidden = block_of("mixtral"), tokens_of([2, 13], "float32")
    set_bias(block, [0, 0, 0, -90])
    fused(block, hidden)[0].sum().backward()
    assert all(not weight.grad.any() for weight in block.experts[3].parameters())
    assert all(weight.grad.any() for weight in block.experts[0].parameters())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda block: setattr(block.gate, "drop_tokens", True), "drop_tokens"),
        (lambda block: setattr(block.gate, "topk_method", "group_limited_greedy"), "group_limited_greedy"),
        (lambda block: setattr(block, "expert_parallel_degree", 2), "expert parallelism, 2"),
        (lambda block: block.experts._sub_layers.update({"1": None}), "experts.1 belongs to another process"),
        (lambda block: setattr(block.experts[0], "tensor_parallel_degree", 2), "tensor_parallel_degree is 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_fused_is_reported(change, words):
    block = block_of("qwen2-moe")
    change(block)
    report = apply_fused_kernels(block, kernels=["moe"])
    assert report.count("moe") == 0 and words in report.reasons("moe")[0]


@pytest.mark.parametrize("kind", MODELS)
def test_other_activations_are_reported(kind):
    report = apply_fused_kernels(block_of(kind, hidden_act="gelu"), kernels=["moe"])
    assert "not silu" in report.reasons("moe")[0]


def products(block, hidden) -> int:
    """The number of grouped products that the fused block calls."""
    paddle_fused.reset_dispatch_log()
    fused(block, hidden)
    return sum(ran.count for ran in paddle_fused.dispatch_log() if ran.operator == "grouped_matmul")


def test_layers_of_experts_are_called_where_they_are_more_than_a_product(device):
    block, hidden = block_of("mixtral"), tokens_of([2, 13], "float32")
    expected = fused(block, hidden)[0]
    seen = []
    hook = block.experts[1].w2.register_forward_post_hook(lambda *_: seen.append(1))
    assert products(block, hidden) == 0 and seen
    np.testing.assert_allclose(values(fused(block, hidden)[0]), values(expected), atol=1e-5)
    hook.remove()
    assert products(block, hidden) == 3
    block.experts[1].w2.bias = paddle.create_parameter([HIDDEN], "float32", is_bias=True)
    assert products(block, hidden) == 0


def test_lora_in_an_expert_is_computed_and_learns(device):
    block, hidden = block_of("qwen2-moe"), tokens_of([2, 13], "float32")
    apply_fused_kernels(block, kernels=["moe"])
    lora = block.experts[2].down_proj = LoRALinear(96, HIDDEN, r=4, bias_attr=False)
    lora.lora_B.set_value(paddle.randn(lora.lora_B.shape))
    out, _ = block(hidden)
    out.sum().backward()
    assert lora.lora_A.grad.abs().max() > 0
    remove_fused_kernels(block)
    np.testing.assert_allclose(values(out), values(block(hidden)[0]), atol=1e-5)
