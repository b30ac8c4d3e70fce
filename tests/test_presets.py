"""Named models and local directories with a config.json."""

import json

import pytest

from llm_npu import config
from llm_npu.presets import ALIASES, PRESETS, config_for, has_weights, is_preset, model_config

LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def directory(path, **fields):
    path.mkdir(exist_ok=True)
    written = {name: value for name, value in (LLAMA | fields).items() if value is not None}
    (path / "config.json").write_text(json.dumps(written))
    return str(path)


def parameters(llama) -> int:
    """Of a Llama with an lm_head of its own: embedding and head; per layer q, k, v, o, MLP, two norms."""
    hidden = llama.hidden_size
    key_value = hidden * llama.num_key_value_heads // llama.num_attention_heads
    layer = 2 * hidden * (hidden + key_value) + 3 * hidden * llama.intermediate_size + 2 * hidden
    return 2 * llama.vocab_size * hidden + llama.num_hidden_layers * layer + hidden


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("llama-tiny", 9.309),
        ("llama-110m", 110.1),
        ("tinyllama-1.1b", 1100),
        ("llama-7b", 6738),
        ("llama-13b", 13016),
        ("llama2-7b", 6738),
        ("llama2-13b", 13016),
        ("llama2-70b", 68977),
        ("llama3-8b", 8030),
        ("llama3-70b", 70554),
    ],
)
def test_presets_have_the_published_number_of_parameters(name, millions):
    assert parameters(model_config(name)) / 1e6 == pytest.approx(millions, rel=1e-3)


def test_the_formula_counts_what_paddlenlp_builds():
    from paddlenlp.transformers import LlamaForCausalLM

    llama = config_for(config.parse(["--num_hidden_layers", "1"]))
    built = sum(parameter.size for parameter in LlamaForCausalLM(llama).parameters())
    assert int(built) == parameters(llama)


def test_every_preset_is_covered_and_every_alias_leads_to_one():
    assert set(ALIASES.values()) <= set(PRESETS)
    assert all(is_preset(name) for name in (*PRESETS, *ALIASES))
    assert model_config("meta-llama/Llama-2-70b").num_key_value_heads == 8


def test_the_default_preset_fits_the_fused_rotary_embedding():
    llama = model_config("llama-tiny")
    assert llama.hidden_size // llama.num_attention_heads % 64 == 0


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llama2-7", "llama2-7b"),
        ("lama-tiny", "llama-tiny"),
        ("meta-llama/Llama3-8B", "llama3-8b"),
        ("xyzzy", None),
    ],
)
def test_unknown_names_are_refused_with_all_presets_and_the_nearest(name, nearest):
    with pytest.raises(ValueError, match="nothing is downloaded") as caught:
        model_config(name)
    assert all(preset in str(caught.value) for preset in PRESETS)
    assert ("Did you mean" in str(caught.value)) == (nearest is not None)
    assert nearest is None or f"Did you mean {nearest}?" in str(caught.value)


def test_a_directory_is_read_and_overrides_replace_its_fields(tmp_path):
    path = directory(
        tmp_path / "m", torch_dtype="bfloat16", head_dim=32, rope_scaling=None, hidden_act="silu"
    )
    llama = model_config(path, num_hidden_layers=3, vocab_size=None)
    assert (llama.hidden_size, llama.num_key_value_heads, llama.num_hidden_layers) == (128, 2, 3)
    assert (llama.vocab_size, llama.rms_norm_eps) == (512, 1e-5)


def test_a_directory_saved_by_paddlenlp_is_read_back(tmp_path):
    saved = model_config("llama-110m", num_hidden_layers=2)
    saved.save_pretrained(str(tmp_path))
    read = model_config(str(tmp_path))
    assert {name: getattr(read, name) for name in LLAMA} == {name: getattr(saved, name) for name in LLAMA}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "qwen2"}, ["qwen2", "model_type llama"]),
        ({"model_type": None}, ["names no model_type"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"mlp_bias": True}, ["mlp_bias"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"head_dim": 64}, ["head_dim 64", "128 / 4"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["linear", "llama3"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, ["yarn"]),
        ({"hidden_size": 130}, ["hidden_size 130", "num_attention_heads 4"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads 4", "num_key_value_heads 3"]),
        ({"num_attention_heads": 128, "num_key_value_heads": 128}, ["head size must be even"]),
        ({"vocab_size": 0}, ["vocab_size is 0"]),
        ({"hidden_size": "128"}, ["hidden_size is '128'"]),
        ({"num_hidden_layers": 1.5}, ["num_hidden_layers is 1.5"]),
    ],
)
def test_configurations_that_make_no_llama_are_refused(tmp_path, fields, words):
    with pytest.raises(ValueError) as caught:
        model_config(directory(tmp_path / "m", **fields))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_directories_without_a_readable_config_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        model_config(str(tmp_path))
    for content in (b"{", b"\xff\xfe", b""):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"config\.json cannot be read"):
            model_config(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="must hold a JSON object"):
        model_config(str(tmp_path))


def test_weights_are_continued_from_where_a_directory_has_them(tmp_path):
    path = directory(tmp_path / "m")
    argv = ["--model_name_or_path", path]
    (tmp_path / "m" / "model_state.pdparams").write_bytes(b"")  # PaddleNLP's own format, which is not read
    assert not has_weights(path)
    assert not config.parse(argv).model.continue_training
    with pytest.raises(ValueError, match=r"holds no \.safetensors"):
        config.parse([*argv, "--continue_training"])
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")
    assert has_weights(path)
    assert config.parse(argv).model.continue_training
    assert not config.parse([*argv, "--continue_training", "false"]).model.continue_training
    assert not has_weights(str(tmp_path / "none"))


def test_the_run_decides_fused_operators_and_length(tmp_path):
    argv = ["--model_name_or_path", directory(tmp_path / "m"), "--max_seq_length", "32"]
    with pytest.raises(
        ValueError, match=r"multiple of 64, but that of .*m is 32; add --use_fused_rope false"
    ):
        config_for(config.parse(argv))
    llama = config_for(config.parse([*argv, "--use_fused_rope", "false", "--fuse_attention_qkv", "false"]))
    assert (llama.seq_length, llama.use_fused_rope, llama.use_flash_attention) == (32, False, True)
    assert (llama.fuse_attention_qkv, llama.fuse_attention_ffn, llama.use_fast_layer_norm) == (
        False,
        True,
        False,
    )
    config_for(config.parse([*argv, "--device", "cpu"]))
    with pytest.raises(ValueError, match=r"--max_seq_length is 65, but .* has 64 positions"):
        config_for(config.parse([*argv[:2], "--max_seq_length", "65"]))
