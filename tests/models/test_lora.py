"""PaddleNLP's LoRA: trained weights, checkpoints and exports."""

import errno
import json

import numpy as np
import paddle
import pytest
from paddlenlp.peft import LoRAModel
from safetensors.numpy import load_file
from tiny_models import SIZES

from llm_npu import surgery
from llm_npu.config import ModelArguments
from llm_npu.core import atomic
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer
from llm_npu.models import lora, weights
from llm_npu.models.paddlenlp.families import config_class, model_class
from llm_npu.training.checkpoint.training import export_merged

pytestmark = pytest.mark.sampled

IDS = paddle.to_tensor([[5, 9, 17, 33, 4, 8, 90, 100]])
PROJECTIONS = ["down_proj", "gate_up_fused_proj", "o_proj", "qkv_proj"]
MIXTURES = {
    "mixtral": {"num_local_experts": 2},
    "qwen2_moe": {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
}


def llama(seed=0):
    return model_of("llama", seed, fuse_attention_qkv=True, fuse_attention_ffn=True)


def model_of(family, seed=0, **flags):
    paddle.seed(seed)
    config = config_class(family).from_dict(SIZES | MIXTURES.get(family, {}))
    for name, value in flags.items():
        setattr(config, name, value)
    model = model_class(family)(config)
    model.eval()
    return model


def arguments(**fields):
    return ModelArguments(finetuning_type="lora", **{"lora_rank": 4, "lora_alpha": 8, **fields})


def adapted(model=None, seed=1, **fields):
    """A model with random A and B."""
    wrapped = lora.wrap(model or llama(), arguments(**fields))
    paddle.seed(seed)
    for parameter in wrapped.get_trainable_state_dict().values():
        parameter.set_value(paddle.randn(parameter.shape) * 0.1)
    wrapped.eval()
    return wrapped


def logits(model):
    with paddle.no_grad():
        return model(IDS)[0].numpy()


def state(model):
    return {name: value.numpy().copy() for name, value in lora.unwrapped(model).state_dict().items()}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("to be, or not to be\n" * 9)
    return load_tokenizer(trained_tokenizer(corpus(text), 270, str(text.parent)))


@pytest.mark.parametrize("fused", [False, True])
def test_training_begins_with_the_model_as_it_is_and_changes_a_and_b_only(fused):
    model = llama()
    before = logits(model)
    model = lora.wrap(model, arguments())
    if fused:
        report = surgery.apply_fused_kernels(model, strict=True)
        assert report.count("attention") == report.count("swiglu") == 2
    model.eval()
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=1e-6)
    trained = [name for name, value in lora.unwrapped(model).state_dict().items() if not value.stop_gradient]
    assert sorted(trained) == sorted(
        f"llama.layers.{layer}.{place}.lora_{matrix}"
        for layer in range(2)
        for place in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_fused_proj", "mlp.down_proj")
        for matrix in "AB"
    )
    first = state(model)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    for _ in range(2):  # at first A has no gradient, because B is zero
        model(IDS, labels=IDS)[0].backward()
        optimizer.step()
        optimizer.clear_grad()
    changed = {name for name, value in state(model).items() if (value != first[name]).any()}
    assert changed == set(trained)


def test_its_loss_is_computed_without_logits_where_that_is_switched_on():
    model, results = adapted(), {}
    model.train()
    kept = model.__dict__["forward"]
    for switch in (False, True):
        surgery.apply_fused_kernels(model, use_fused_linear_cross_entropy=switch)
        loss, output = model(IDS, labels=IDS)[:2]
        assert (output is None) is switch
        loss.backward()
        gradients = [parameter.grad.numpy() for parameter in model.get_trainable_state_dict().values()]
        results[switch] = [float(loss), *gradients]
        model.clear_gradients()
    for actual, other in zip(*results.values(), strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-6)
    surgery.remove_fused_kernels(model)
    assert model.__dict__["forward"] is kept and model(IDS, labels=IDS)[1] is not None


def test_projections_are_chosen_by_name():
    model = lora.wrap(llama(), arguments(lora_target="o_proj, down_proj"))
    names = {name.split(".")[-2] for name in model.get_trainable_state_dict()}
    assert names == {"o_proj", "down_proj"}
    words = f"'q_proj', but the model has the projections {', '.join(PROJECTIONS)}"
    with pytest.raises(ValueError, match=words):
        lora.wrap(llama(), arguments(lora_target="q_proj"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_saved_is_loaded_bit_for_bit_by_us_and_by_paddlenlp(tmp_path, dtype):
    model, again = adapted(), lora.wrap(llama(), arguments())
    for network in (model, again):
        network.to(dtype=dtype)
    lora.save(model, tmp_path)
    lora.load(again, tmp_path)
    reloaded = LoRAModel.from_pretrained(llama().to(dtype=dtype), str(tmp_path))
    for other in (again, reloaded):
        other.eval()
        assert logits(other).tobytes() == logits(model).tobytes()
    assert (tmp_path / "config.json").is_file()


@pytest.mark.parametrize("family", ["llama", *MIXTURES])
def test_peft_computes_the_same_weights(tmp_path, family):
    """W + alpha / rank B A in peft's layout, of every projection, is what is merged here."""
    model = adapted(llama() if family == "llama" else model_of(family))
    before = weights.to_upstream(lora.unwrapped(model))
    with lora.merged(model):
        merged = weights.to_upstream(lora.unwrapped(model))
    lora.save(model, tmp_path)
    config = json.loads((tmp_path / lora.PEFT_CONFIG).read_text())
    adapter = load_file(tmp_path / lora.PEFT_FILE)
    places = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in adapter}
    assert (config["peft_type"], config["task_type"], config["fan_in_fan_out"]) == (
        "LORA",
        "CAUSAL_LM",
        False,
    )
    changed = {name for name in before if (merged[name] != before[name]).any()}
    assert changed == {f"{place}.weight" for place in places}
    for place in places:
        a, b = (adapter[f"base_model.model.{place}.lora_{matrix}.weight"] for matrix in "AB")
        assert a.shape[0] == b.shape[1] == config["r"]
        weight = before[f"{place}.weight"] + config["lora_alpha"] / config["r"] * (b @ a)
        np.testing.assert_allclose(merged[f"{place}.weight"], weight, rtol=0, atol=1e-6)
    # peft takes a module whose name is one of the targets, or ends with a dot and one of them
    modules = [name.removesuffix(".weight") for name in before]
    taken = {
        name for name in modules for target in config["target_modules"] if f".{name}".endswith(f".{target}")
    }
    assert taken == places


def test_a_pickle_is_refused(tmp_path):
    (tmp_path / "lora_model_state.pdparams").write_bytes(b"cposix\nsystem\n(Vtouch run\ntR.")
    with pytest.raises(ValueError, match=r"lora_model_state\.pdparams is a pickle.*safe_serialization"):
        lora.load(lora.wrap(llama(), arguments()), tmp_path)


def test_weights_of_other_lora_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no peft_model\.safetensors"):
        lora.load(adapted(), tmp_path)
    lora.save(adapted(), tmp_path)
    with pytest.raises(ValueError, match=r"lora_A is \[64, 4\], .* \[64, 2\]"):
        lora.load(adapted(lora_rank=2), tmp_path)
    with pytest.raises(ValueError, match="no LoRA"):
        lora.load(adapted(lora_target="o_proj"), tmp_path)
    lora.save(adapted(lora_target="o_proj"), tmp_path)
    with pytest.raises(ValueError, match=r"qkv_proj\.lora_A is missing"):
        lora.load(adapted(), tmp_path)


def test_the_merged_model_computes_the_same_without_lora(tmp_path, tokenizer):
    model = adapted()
    expected, before = logits(model), state(model)
    export_merged(model, tokenizer, tmp_path / "merged")
    after = state(model)
    assert all(after[name].tobytes() == value.tobytes() for name, value in before.items())
    assert logits(model).tobytes() == expected.tobytes()

    plain = llama(seed=7)
    weights.load(plain, tmp_path / "merged")
    np.testing.assert_allclose(logits(plain), expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert np.abs(logits(llama()) - expected).max() > 1e-2  # LoRA did something
    assert len(load_tokenizer(tmp_path / "merged")) == len(tokenizer)


def test_merging_in_bfloat16_rounds_once():
    model = adapted(llama().to(dtype="bfloat16"))
    layer = model.model.llama.layers[0].mlp.down_proj
    weight, a, b = (tensor.astype("float64").numpy() for tensor in (layer.weight, layer.lora_A, layer.lora_B))
    with lora.merged(model):
        merged = layer.weight.astype("float64").numpy()
    exact = weight + 2.0 * (a @ b)
    nearest = paddle.to_tensor(exact.astype("float32")).astype("bfloat16").astype("float64").numpy()
    assert (merged == nearest).mean() > 0.999 and np.allclose(merged, exact, rtol=2**-8)


def test_an_export_takes_the_place_of_an_earlier_one_when_it_is_complete(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "old").touch()

    def no_room(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "flush", no_room)  # the last step before the names change
        with pytest.raises(OSError, match="No space left"):
            export_merged(adapted(), tokenizer, tmp_path / "merged")
    assert [path.name for path in tmp_path.rglob("*")] == ["merged", "old"]
    export_merged(adapted(), tokenizer, tmp_path / "merged")
    assert not (tmp_path / "merged" / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


@pytest.mark.parametrize("error", [None, errno.EINVAL])
def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch, error):
    """Also where the file system cannot exchange two names."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()

    def exchange(source, other, exchanged=atomic.exchange):
        if error:
            raise OSError(error, "no such step", str(source))
        exchanged(source, other)

    monkeypatch.setattr(atomic, "exchange", exchange)
    with atomic.unfinished(target) as folder:
        (folder / "new").touch()
        atomic.replace(folder, target)
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "new"]


@pytest.mark.parametrize("family", ["qwen2", "mistral", *MIXTURES])
def test_every_family_is_adapted_fused_and_exported(tmp_path, tokenizer, family):
    model = adapted(model_of(family))
    assert not any(".experts." in name for name in model.get_trainable_state_dict())
    surgery.apply_fused_kernels(model, strict=True, use_fused_add_rms_norm=True)
    model.train()
    model(IDS, labels=IDS)[0].backward()
    gradients = {name: value.grad for name, value in lora.unwrapped(model).state_dict().items()}
    assert {name for name, value in gradients.items() if value is not None} == set(
        model.get_trainable_state_dict()
    )
    model.eval()
    export_merged(model, tokenizer, tmp_path / "merged")
    plain = model_of(family, seed=7)
    weights.load(plain, tmp_path / "merged")
    surgery.apply_fused_kernels(plain)
    expected = logits(model)
    np.testing.assert_allclose(logits(plain), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
