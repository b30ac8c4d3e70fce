"""Named models and local directories with a config.json."""

import json
import re
import typing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from llm_npu import config
from llm_npu.config.arguments import ModelArguments
from llm_npu.config.flag import flags_of
from llm_npu.models import upstream_config
from llm_npu.models.families import FAMILIES, model_class, new_model
from llm_npu.models.family import VARIANTS
from llm_npu.models.flops import flops_per_token
from llm_npu.models.presets import (
    ALIASES,
    PRESETS,
    fields_of,
    has_weights,
    is_preset,
    model_config,
    model_type,
)
from llm_npu.plan.shape import ModelShape
from llm_npu.surgery.registry import scan
from llm_npu.training.model import config_for

pytestmark = pytest.mark.sampled

TINY = [(model_type, family.tiny) for model_type, family in FAMILIES.items()]
PADDLENLP = Path(find_spec("paddlenlp").origin).parent / "transformers"
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
        ("llama2-34b", 33744),
        ("llama2-70b", 68977),
        ("llama3-8b", 8030),
        ("llama3-70b", 70554),
        ("llama3.1-8b", 8030),
        ("llama3.1-70b", 70554),
        ("llama3.2-1b", 1236),
        ("llama3.2-3b", 3213),
        ("codellama-34b", 33744),
        ("qwen1.5-0.5b", 464),
        ("qwen2-0.5b", 494),
        ("qwen2.5-3b", 3086),
        ("qwen2.5-0.5b", 494),
        ("qwen2.5-7b", 7616),
        ("mistral-7b", 7242),
        ("mixtral-8x7b", 46703),
        ("qwen1.5-moe-a2.7b", 14316),
    ],
)
def test_presets_have_the_published_number_of_parameters(name, millions):
    shape = ModelShape.of(name)
    assert shape.parameters / 1e6 == pytest.approx(millions, rel=1e-3)
    assert flops_per_token(shape, 1) == flops_per_token(model_config(name), 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_counts_what_paddlenlp_builds(family):
    model = config_for(config.parse(["--model_type", family, "--num_hidden_layers", "1"]))
    built = model_class(family)(model)
    assert type(built).__name__ == f"{FAMILIES[family].name}ForCausalLM"
    shape = replace(ModelShape.of(FAMILIES[family].tiny), num_hidden_layers=1)
    assert sum(int(parameter.size) for parameter in built.parameters()) == shape.parameters


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_the_classes_of_a_family_are_paddlenlps(family):
    """Also those of layers that the surgery changes, which a misspelt name would leave as they are."""
    source = "".join(file.read_text() for file in (PADDLENLP / family.model_type).glob("modeling*.py"))
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE))
    assert classes >= {*family.models, *(name for layers in family.layers.values() for name in layers)}
    assert family.layers.keys() <= scan().keys()
    for operator, layers in family.layers.items():
        assert {*layers.values()} <= {*typing.get_args(VARIANTS[operator])}


def test_every_family_has_a_tiny_preset_and_the_others_lead_to_their_family():
    assert {model_type(name) for name in PRESETS} == set(FAMILIES)
    for family, name in TINY:
        run = config.parse(["--model_type", family])
        assert (run.model.model_name_or_path, config_for(run).model_type) == (name, family)
        assert ModelShape.of(name).parameters < 12e6


def test_the_padding_token_of_a_mistral_is_learnt():
    model = new_model(model_config("mistral-tiny", num_hidden_layers=1, pad_token_id=2))
    assert model.config.pad_token_id == 2
    assert (model.mistral.embed_tokens.weight[2] != 0).any()
    assert model.mistral.embed_tokens._padding_idx is None


def test_the_family_must_be_the_models():
    assert config_for(config.parse(["--model_name_or_path", "qwen2-tiny"])).model_type == "qwen2"
    argv = ["--model_type", "mistral", "--model_name_or_path", "qwen2-tiny"]
    with pytest.raises(ValueError, match=r"--model_type is mistral, but qwen2-tiny is .*qwen2"):
        config_for(config.parse(argv))


def test_a_window_that_paddlenlp_does_not_compute_is_refused(tmp_path):
    for family, refused in (("mistral", True), ("mixtral", True), ("qwen2", False)):
        fields = {"model_type": family, "sliding_window": 16, "num_local_experts": 2}
        argv = ["--model_name_or_path", directory(tmp_path / "m", **fields), "--max_seq_length"]
        config_for(config.parse([*argv, "16"]))
        if refused:
            with pytest.raises(ValueError, match="sliding window of 16 tokens"):
                config_for(config.parse([*argv, "17"]))
        else:
            config_for(config.parse([*argv, "17"]))


def test_every_preset_is_covered_and_every_alias_leads_to_one():
    assert set(ALIASES.values()) <= set(PRESETS)
    assert all(is_preset(name) for name in (*PRESETS, *ALIASES))
    assert model_config("meta-llama/Llama-2-70b").num_key_value_heads == 8


@pytest.mark.parametrize("name", dict(TINY).values())
def test_the_tiny_presets_fit_the_fused_rotary_embedding_of_a_card(name):
    model = model_config(name)
    assert model.hidden_size // model.num_attention_heads % 64 == 0


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
        ({"model_type": "opt"}, ["opt", "model_type llama, qwen2, mistral, mixtral, qwen2_moe, gpt"]),
        ({"model_type": "qwen2", "use_sliding_window": True}, ["use_sliding_window", "Qwen2"]),
        ({"model_type": "qwen2", "rope_scaling": {"type": "yarn"}}, ["yarn", "Qwen2 supports none"]),
        ({"model_type": "mistral", "tie_word_embeddings": True}, ["tie_word_embeddings", "Mistral"]),
        ({"model_type": "mixtral", "num_local_experts": 1}, ["num_experts_per_tok 2", "num_local_experts 1"]),
        ({"model_type": "mixtral", "num_local_experts": 0}, ["num_local_experts is 0"]),
        ({"model_type": "qwen2_moe", "mlp_only_layers": [0]}, ["mlp_only_layers"]),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, ["decoder_sparse_step 2"]),
        ({"model_type": "qwen2_moe", "num_experts": 3}, ["num_experts_per_tok 4", "num_experts 3"]),
        ({"model_type": None}, ["names no model_type"]),
        (
            {
                "model_type": "paddleocr_vl",
                "rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]},
            },
            ["PaddleOCR-VL", "llm-npu formers train FILE.yaml"],
        ),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"mlp_bias": True}, ["mlp_bias"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"head_dim": 64}, ["head_dim 64", "128 / 4"]),
        (
            {"model_type": "qwen2", "rope_scaling": {"type": "linear", "factor": 2.0}},
            ["linear", "Qwen2 supports none"],
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, ["yarn"]),
        ({"hidden_size": 130}, ["hidden_size 130", "num_attention_heads 4"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads 4", "num_key_value_heads 3"]),
        ({"num_attention_heads": 128, "num_key_value_heads": 128}, ["head size must be even"]),
        ({"vocab_size": 0}, ["vocab_size is 0"]),
        ({"hidden_size": "128"}, ["hidden_size is '128'"]),
        ({"num_hidden_layers": 1.5}, ["num_hidden_layers is 1.5"]),
    ],
)
def test_configurations_that_make_no_model_are_refused(tmp_path, fields, words):
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
    with pytest.raises(ValueError, match=r"model_state\.pdparams is a pickle.*--continue_training false"):
        config.parse(argv)  # a run from random weights would pass for a continued one
    assert not config.parse([*argv, "--continue_training", "false"]).model.continue_training
    with pytest.raises(ValueError, match=r"no \.safetensors: model_state\.pdparams is a pickle"):
        config.parse([*argv, "--continue_training"])
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")
    assert has_weights(path)
    assert config.parse(argv).model.continue_training
    assert not config.parse([*argv, "--continue_training", "false"]).model.continue_training
    assert not has_weights(str(tmp_path / "none"))


def test_the_run_decides_fused_projections_and_length(tmp_path):
    argv = ["--model_name_or_path", directory(tmp_path / "m"), "--max_seq_length", "32"]
    llama = config_for(config.parse([*argv, "--fuse_attention_qkv", "false"]))
    assert llama.seq_length == 32
    assert not llama.fuse_attention_qkv and llama.fuse_attention_ffn and not llama.use_fast_layer_norm
    config_for(config.parse([*argv, "--device", "cpu"]))
    with pytest.raises(ValueError, match=r"--max_seq_length is 65, but .* has 64 positions"):
        config_for(config.parse([*argv[:2], "--max_seq_length", "65"]))
    mistral = config_for(config.parse(["--model_type", "mistral"]))
    assert not (mistral.fuse_attention_qkv or mistral.fuse_attention_ffn)


def test_a_family_of_the_other_library_is_refused_with_its_extra(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    extra = r'Qwen3 is trained with PaddleFormers: .*pip install "\.\[paddleformers\]"\.$'
    for name in ("qwen3-8b", "Qwen/Qwen3-8B", str(tmp_path)):
        with pytest.raises(ValueError, match=extra):
            fields_of(name)
    with pytest.raises(ValueError, match=extra):
        flags_of(ModelArguments, "model")["model_type"].check("qwen3")


def test_a_checkpoint_of_several_ranks_is_a_whole_model(tmp_path):
    tiny = model_config("llama-tiny")
    tiny.tensor_parallel_degree = 2
    upstream_config.save(tiny, tmp_path, "float32")
    fields = json.loads((tmp_path / "config.json").read_text())
    assert "tensor_parallel_degree" not in fields
    fields |= {"tensor_parallel_degree": 2, "sequence_parallel": True}  # as PaddleNLP writes them
    (tmp_path / "config.json").write_text(json.dumps(fields))
    read = model_config(str(tmp_path))
    assert read.tensor_parallel_degree == 1 and not read.sequence_parallel
