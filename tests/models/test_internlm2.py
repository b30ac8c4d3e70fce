"""InternLM2's checkpoints as Llama's and back, against InternLM2 written out in numpy."""

import json

import numpy as np
import paddle
import pytest
from llama_in_numpy import logits_of

from llm_npu.models import pretrained, stored, weights
from llm_npu.models.paddlenlp import internlm2
from llm_npu.models.stored import Stored
from llm_npu.surgery import apply_fused_kernels
from paddle_fused import dispatch_log, reset_dispatch_log

pytestmark = pytest.mark.sampled

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, VOCABULARY, HEAD = 64, 96, 4, 2, 2, 128, 16
GROUPS = HEADS // KV_HEADS
FIELDS = {
    "architectures": ["InternLM2ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
    "model_type": "internlm2",
    "bias": False,
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def random_weights() -> dict[str, np.ndarray]:
    """Names and shapes of the tensors of InternLM2ForCausalLM, float32."""
    draw = np.random.default_rng(0)
    layer = {
        "attention_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attention.wqkv": (KV_HEADS * (GROUPS + 2) * HEAD, HIDDEN),
        "attention.wo": (HIDDEN, HIDDEN),
        "feed_forward.w1": (INNER, HIDDEN),
        "feed_forward.w3": (INNER, HIDDEN),
        "feed_forward.w2": (HIDDEN, INNER),
    }
    shapes = {
        f"model.layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()
    }
    shapes |= dict.fromkeys(("model.tok_embeddings.weight", "output.weight"), (VOCABULARY, HIDDEN))
    shapes |= {"model.norm.weight": (HIDDEN,)}
    return {
        name: (draw.standard_normal(shape) * 0.2 + ("norm" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def as_llama(w: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Names and weights of Llama, from InternLM2's own layout of wqkv: "(h gs d) hidden"."""
    names = {
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
    }
    ends = {"embed_tokens": "model.tok_embeddings", "norm": "model.norm"}
    llama = {f"model.{name}.weight": w[f"{own}.weight"] for name, own in ends.items()}
    llama["lm_head.weight"] = w["output.weight"]
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        llama |= {f"{layer}.{name}.weight": w[f"{layer}.{own}.weight"] for own, name in names.items()}
        qkv = w[f"{layer}.attention.wqkv.weight"].reshape(KV_HEADS, GROUPS + 2, HEAD, HIDDEN)
        for part, rows in (("q", qkv[:, :GROUPS]), ("k", qkv[:, -2]), ("v", qkv[:, -1])):
            llama[f"{layer}.self_attn.{part}_proj.weight"] = rows.reshape(-1, HIDDEN)
    return llama


def write(folder, arrays, **changes):
    """A checkpoint in two files, with a file that is neither weights nor configuration."""
    folder.mkdir()
    names = sorted(arrays)
    half = len(names) // 2
    stored.write(
        arrays, folder, {"model-1-of-2.safetensors": names[:half], "model-2.safetensors": names[half:]}
    )
    (folder / "config.json").write_text(json.dumps(FIELDS | changes))
    (folder / "special_tokens_map.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("internlm2") / "own", random_weights())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16], ids=["float32", "float16", "bfloat16"])
def test_there_and_back_is_the_same_bit_for_bit(tmp_path, dtype):
    arrays = random_weights()
    for name, array in arrays.items():  # bfloat16 as uint16, which is how Paddle's ``numpy()`` gives it
        arrays[name] = (array.view(np.uint32) >> 16 if dtype == np.uint16 else array).astype(dtype)
    own = write(tmp_path / "own", arrays)
    internlm2.to_llama(own, tmp_path / "llama")
    internlm2.from_llama(tmp_path / "llama", tmp_path / "back")
    files, names = ({file.name for file in path.iterdir()} for path in (tmp_path / "back", own))
    assert files == names
    back = Stored(tmp_path / "back")
    assert {file: set(names) for file, names in back.files.items()} == {
        file: set(names) for file, names in Stored(own).files.items()
    }
    for name, array in arrays.items():
        assert back[name].dtype == dtype
        np.testing.assert_array_equal(back[name], array, err_msg=name)
    fields = json.loads((tmp_path / "back/config.json").read_text())
    assert fields == {name: value for name, value in FIELDS.items() if name != "auto_map"}


@pytest.mark.parametrize("converted", [False, True], ids=["directly", "converted"])
@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_the_llama_computes_what_internlm2_does(folder, tmp_path, device, converted, fused):
    if converted:
        internlm2.to_llama(folder, tmp_path / "llama")
    model = pretrained.load_model(tmp_path / "llama" if converted else folder, "float32")
    if fused:
        apply_fused_kernels(model, strict=True)
    ids = np.arange(17) * 37 % VOCABULARY
    reset_dispatch_log()
    with paddle.no_grad():
        logits = model(paddle.to_tensor(ids[None]))[0].numpy()[0]
    assert ("flash_attention" in {ran.operator for ran in dispatch_log()}) == fused
    golden = logits_of(as_llama(random_weights()), ids, FIELDS)
    # fp32 sums of up to 96 terms, a dozen in a row: 2^-24 * sqrt(96 * 12) of the largest logit
    assert np.abs(logits - golden).max() < 2**-24 * 34 * np.abs(golden).max() * 4


def test_a_trained_llama_goes_back_to_internlm2(folder, tmp_path):
    model = pretrained.load_model(folder, "float32")
    weights.save(model, tmp_path)
    internlm2.from_llama(tmp_path, tmp_path / "back")
    before, after = Stored(folder), Stored(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"exists already"):
        internlm2.to_llama(folder, tmp_path)
    with pytest.raises(ValueError, match=r"model_type 'internlm2'; accepted here: 'llama'"):
        internlm2.from_llama(folder, tmp_path / "new")
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        internlm2.to_llama(tmp_path, tmp_path / "new")
    biased = write(tmp_path / "biased", {"output.weight": np.zeros((2, 2), np.float32)}, bias=True)
    with pytest.raises(ValueError, match="has bias true"):
        internlm2.to_llama(biased, tmp_path / "new")
    other = write(tmp_path / "other", random_weights(), num_key_value_heads=4, num_attention_heads=12)
    with pytest.raises(ValueError, match=r"wqkv.weight is \[128, 64\], .* 4 key"):
        internlm2.to_llama(other, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_dtypes_that_the_device_does_not_compute(folder, on_cpu):
    with pytest.raises(ValueError, match="does not support matmuls in bfloat16"):
        pretrained.load_model(folder, "bfloat16")
    with pytest.raises(ValueError, match="dtype is int8; accepted: float32"):
        pretrained.load_model(folder, "int8")


def test_a_llama_without_a_projection_is_refused(folder, tmp_path):
    internlm2.to_llama(folder, tmp_path / "llama")
    arrays = Stored(tmp_path / "llama")
    kept = {name: arrays[name] for name in arrays if "layers.1.self_attn.k_proj" not in name}
    view = internlm2.AsInternLM2(kept, HEADS, KV_HEADS)
    with pytest.raises(ValueError, match=r"lacks model.layers.1.self_attn.k_proj.weight"):
        dict(view)
