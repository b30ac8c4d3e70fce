"""GPT: dropout and LayerNorm in one operator, learned positions of packed documents, and GPT-2's files."""

import itertools
import json

import numpy as np
import paddle
import pytest
from fused_models.comparison import array, built, random_batch, results
from fused_models.families import BY_NAME

import paddle_fused
from llm_npu.inference.generate import generate
from llm_npu.models import families, presets, weights
from llm_npu.surgery import apply_fused_kernels
from paddle_fused import masks

pytestmark = pytest.mark.sampled

GPT = BY_NAME["gpt"]
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
OPERATOR = "dropout_add_layer_norm"


def with_dropout(operator, dtype="float32", **attributes):
    model = built(GPT, operator, dtype, **DROPOUT, **attributes)
    model.train()
    return model


def seeded(model, seed):
    paddle.seed(seed)
    return results(GPT, model, random_batch())


# A recomputed layer draws what it adds by Paddle's dropout, as the operator does on the device only.
@pytest.mark.parametrize(
    ("place", "granularity"),
    [("npu:0", "full"), ("npu:0", "full_attn"), ("npu:0", "core_attn"), ("cpu", "full_attn")],
)
def test_recompute_draws_the_same_dropout(place, granularity):
    paddle.set_device(place)
    expected = seeded(with_dropout("all"), 3)
    model = with_dropout("all", recompute_granularity=granularity)
    model.recompute_enable()
    paddle_fused.reset_dispatch_log()
    gradients = seeded(model, 3)
    calls = {}
    for ran in paddle_fused.dispatch_log():
        calls[ran.operator] = calls.get(ran.operator, 0) + ran.count
    layers = model.config.num_hidden_layers
    assert calls["flash_attention"] == 2 * layers
    # Without recompute too: a layer that is recomputed whole adds its feed-forward output by itself.
    assert calls[OPERATOR] == 2 * layers
    for name, values in expected.items():
        np.testing.assert_allclose(gradients[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_every_norm_after_dropout_is_in_the_operator():
    model = with_dropout("all")
    paddle_fused.reset_dispatch_log()
    seeded(model, 1)
    (count,) = [ran.count for ran in paddle_fused.dispatch_log() if ran.operator == OPERATOR]
    assert count == 2 * model.config.num_hidden_layers


def test_documents_of_a_packed_row_do_not_see_each_other(device):
    model = built(GPT, "all")
    lengths = [5, 9, 2]
    ids = random_batch().ids[:1]
    positions = np.concatenate([np.arange(length) for length in lengths])[None]
    with paddle.no_grad():
        packed = model(
            input_ids=paddle.to_tensor(ids),
            position_ids=paddle.to_tensor(positions),
            attention_mask=masks.documents([lengths]),
        )
        begins = np.cumsum([0, *lengths])
        alone = [model(input_ids=paddle.to_tensor(ids[:, a:b])) for a, b in itertools.pairwise(begins)]
    np.testing.assert_allclose(
        array(packed), np.concatenate([array(tensor) for tensor in alone], 1), atol=2e-5
    )


@pytest.mark.parametrize("operator", [None, "all"])
def test_prompts_of_a_batch_get_what_they_would_get_alone(operator):
    paddle.set_device("npu:0")
    model = built(GPT, operator)
    prompts = [random_batch(seed=1).ids[0, :9].tolist(), random_batch(seed=2).ids[0, :4].tolist()]
    together = generate(model, prompts, 6, eos_token_id=2).ids
    assert together == [generate(model, [prompt], 6, eos_token_id=2).ids[0] for prompt in prompts]


def tiny(**fields):
    return presets.model_config("gpt-tiny", num_hidden_layers=2, vocab_size=96, **fields)


def test_files_are_those_of_a_gpt2(tmp_path):
    model = families.new_model(tiny())
    weights.save(model, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["model_type"], written["n_embd"], written["n_layer"]) == ("gpt2", 256, 2)
    stored = weights.Stored(tmp_path)
    assert stored["transformer.h.1.attn.c_attn.weight"].shape == (256, 768)
    key = model.gpt.decoder.layers[1].self_attn.k_proj.weight.numpy()
    np.testing.assert_array_equal(stored["transformer.h.1.attn.c_attn.weight"][:, 256:512], key)
    other = families.new_model(presets.model_config(str(tmp_path)))
    weights.load(other, tmp_path)
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name].numpy(), values.numpy(), err_msg=name)


@pytest.mark.slow
def test_paddlenlp_reads_the_files(tmp_path):
    from paddlenlp.transformers import GPTForCausalLM

    model = families.new_model(tiny())
    model.eval()
    weights.save(model, tmp_path)
    read = GPTForCausalLM.from_pretrained(str(tmp_path), convert_from_torch=True)
    read.eval()
    ids = paddle.to_tensor(random_batch().ids % 96)
    np.testing.assert_array_equal(read(ids).numpy(), model(ids).numpy())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"activation_function": "relu"}, ["activation_function 'relu'", "gelu_new"]),
        ({"activation_function": "gelu"}, ["activation_function 'gelu'", "gelu_new"]),
        ({"layer_norm_epsilon": 1e-6}, ["layer_norm_epsilon 1e-06"]),
        ({"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx True"]),
        ({"resid_pdrop": 0.2}, ["resid_pdrop 0.2", "one dropout"]),
        ({"attn_pdrop": "a", "resid_pdrop": "a", "embd_pdrop": "a"}, ["dropout_prob 'a'"]),
        ({"n_embd": "a"}, ["hidden_size is 'a'"]),
        ({"n_head": 7}, ["hidden_size 64", "num_attention_heads 7"]),
        ({"model_type": "gpt", "normalize_before": False}, ["normalize_before"]),
        ({"model_type": "gpt", "hidden_activation": "relu"}, ["hidden_activation"]),
    ],
)
def test_models_that_paddlenlp_would_compute_otherwise_are_refused(tmp_path, fields, words):
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes | fields))
    with pytest.raises(ValueError) as caught:
        presets.model_config(str(tmp_path))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_released_files_have_no_prefix_and_masks_beside_the_weights(tmp_path):
    model = families.new_model(tiny())
    upstream = weights.to_upstream(model)
    released = {name.removeprefix("transformer."): values for name, values in upstream.items()}
    released["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 256}))
    weights.write(released, tmp_path)
    other = families.new_model(tiny())
    weights.load(other, tmp_path)
    for name, values in weights.to_upstream(other).items():
        np.testing.assert_array_equal(values, upstream[name], err_msg=name)


def test_another_model_with_layers_of_these_names_is_no_site():
    from paddlenlp.transformers import OPTConfig, OPTForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2, "word_embed_proj_dim": 32}
    with pytest.raises(ValueError, match="has no layer"):
        apply_fused_kernels(OPTForCausalLM(OPTConfig(num_hidden_layers=1, **sizes)))
