"""Checkpoints are whole or not there, and hold the weights as Hugging Face's Llama reads them."""

import errno
import json
import os
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from checkpoint_files import store
from llama_in_numpy import logits_of
from paddlenlp.transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from safetensors.numpy import load_file

from llm_npu.config import parse
from llm_npu.core import atomic
from llm_npu.models import weights
from llm_npu.training import checkpoint
from llm_npu.training.checkpoint.saving import Checkpoints
from llm_npu.training.model import build

pytestmark = pytest.mark.sampled

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, VOCABULARY = 128, 192, 4, 2, 2, 96
HEAD = HIDDEN // HEADS


def llama(fused=False, tie=False, dtype="float32", seed=1):
    paddle.seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        fuse_attention_qkv=fused,
        fuse_attention_ffn=fused,
        tie_word_embeddings=tie,
        use_fast_layer_norm=False,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones would hide a norm that is left out
            parameter.set_value(paddle.rand(parameter.shape) + 0.5)
    return model.to(dtype=dtype)


def save(folder, step, text="state"):
    store(folder, step, {"a.bin": text, "b.bin": bytes(1000)})


def test_a_checkpoint_is_complete_and_verifies(tmp_path):
    save(tmp_path, 7)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint-7"]
    assert checkpoint.verify(tmp_path / "checkpoint-7") == 7


def test_a_failing_save_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "a.bin").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(tmp_path, 1)
    with pytest.raises(OSError, match=r"a\.bin: No space left on device; .*checkpoint-1 is complete"):
        Checkpoints(tmp_path).save(2, {}, {"a.bin": fail})
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint-1"]


@pytest.mark.slow
def test_kill_in_the_middle_of_a_save(tmp_path, run_python):
    save(tmp_path, 1)
    program = (
        "import os, signal, sys; from llm_npu.training.checkpoint.saving import Checkpoints\n"
        "def killed(folder):\n"
        "    (folder / 'a.bin').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Checkpoints(sys.argv[1]).save(2, {}, {'a.bin': killed})\n"
    )
    assert run_python("-c", program, tmp_path).returncode == -9
    assert checkpoint.to_resume(True, tmp_path).name == "checkpoint-1"
    save(tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]


def test_what_another_live_process_writes_is_left_alone(tmp_path):
    def late(folder):  # the other one writes at the same time, and is done before
        save(tmp_path, 2)
        save(tmp_path, 3)
        (folder / "a.bin").write_text("later")

    Checkpoints(tmp_path).save(2, {}, {"a.bin": late})
    assert (tmp_path / "checkpoint-2/a.bin").read_text() == "later"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_while_a_checkpoint_is_replaced(tmp_path, run_python, when):
    save(tmp_path, 2, "old")
    program = (
        "import os, signal, sys; from llm_npu.core import atomic\n"
        "from llm_npu.training.checkpoint.saving import Checkpoints\n"
        "exchange = atomic.exchange\n"
        "def killed(one, other):\n"
        "    if sys.argv[2] == 'after': exchange(one, other)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic.exchange = killed\n"
        "new = {'a.bin': lambda folder: (folder / 'a.bin').write_text('new')}\n"
        "Checkpoints(sys.argv[1]).save(2, {}, new)\n"
    )
    assert run_python("-c", program, tmp_path, when).returncode == -9
    kept = checkpoint.to_resume(True, tmp_path)
    assert (kept / "a.bin").read_text() == {"before": "old", "after": "new"}[when]
    save(tmp_path, 3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3"]


@pytest.mark.parametrize("error", [None, errno.EINVAL])
def test_a_save_replaces_an_earlier_runs(tmp_path, monkeypatch, error):
    """Also where the file system cannot exchange two names, as NFS."""

    def refuse(source, other):
        raise OSError(error, "no RENAME_EXCHANGE", str(source))

    if error:
        monkeypatch.setattr(atomic, "exchange", refuse)
    save(tmp_path, 3, "old")
    save(tmp_path, 3, "new")
    assert (tmp_path / "checkpoint-3/a.bin").read_text() == "new"
    assert checkpoint.verify(tmp_path / "checkpoint-3") == 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "a.bin").unlink(), "a.bin is missing"),
        (lambda folder: (folder / "b.bin").write_bytes(bytes(999)), "b.bin has 999 bytes instead of 1000"),
        (lambda folder: (folder / "b.bin").write_bytes(bytes(999) + b"x"), "b.bin has a different SHA-256"),
        (lambda folder: (folder / "complete.json").unlink(), "was not completely written"),
        (
            lambda folder: (folder / "complete.json").rename(folder / "optimizer.pdopt"),
            "optimizer.pdopt is a pickle",
        ),
        (lambda folder: (folder / "complete.json").write_text("{"), "complete.json cannot be read"),
        (lambda folder: (folder / "complete.json").write_text("[]"), "complete.json cannot be read"),
    ],
)
def test_damage_is_named(tmp_path, damage, sentence):
    save(tmp_path, 5)
    save(tmp_path, 10)
    damage(tmp_path / "checkpoint-10")
    with pytest.raises(ValueError, match=sentence) as error:
        checkpoint.to_resume(str(tmp_path / "checkpoint-10"), tmp_path)
    assert f"Resume from {tmp_path / 'checkpoint-5'} instead" in str(error.value)


def test_the_newest_complete_one_is_resumed(tmp_path):
    save(tmp_path, 9)
    save(tmp_path, 10)  # greater as a number, smaller as a word
    (tmp_path / "checkpoint-11").mkdir()  # what a killed upstream Trainer leaves
    assert checkpoint.to_resume(True, tmp_path).name == "checkpoint-10"
    assert checkpoint.to_resume(str(tmp_path / "checkpoint-9"), tmp_path).name == "checkpoint-9"


def test_the_newest_if_there_is_any(tmp_path):
    assert checkpoint.to_resume("auto", tmp_path) is None
    save(tmp_path, 3)
    assert checkpoint.to_resume("auto", tmp_path).name == "checkpoint-3"


def test_a_damaged_newest_one_is_passed_over_with_a_note(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    for step in (2, 3):
        (tmp_path / f"checkpoint-{step}/b.bin").write_bytes(bytes(999))
    notes = []
    assert checkpoint.to_resume(True, tmp_path, say=notes.append).name == "checkpoint-1"
    assert [f"checkpoint-{step} is corrupt" in note for step, note in zip((3, 2), notes, strict=True)] == [
        True
    ] * 2
    (tmp_path / "checkpoint-1/a.bin").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-1 is corrupt: a\.bin is missing"):
        checkpoint.to_resume("auto", tmp_path, say=notes.append)


def test_a_damaged_checkpoint_is_never_recommended(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    for step in (2, 3):
        (tmp_path / f"checkpoint-{step}/a.bin").unlink()
    for step in (2, 3):
        with pytest.raises(ValueError, match=r"Resume from .*/checkpoint-1 instead"):
            checkpoint.to_resume(str(tmp_path / f"checkpoint-{step}"), tmp_path)
    (tmp_path / "checkpoint-1/b.bin").unlink()
    for step in (1, 2, 3):
        with pytest.raises(ValueError, match="no undamaged checkpoint") as error:
            checkpoint.to_resume(str(tmp_path / f"checkpoint-{step}"), tmp_path)
        assert "instead" not in str(error.value)
    with pytest.raises(ValueError, match="no undamaged checkpoint") as error:
        checkpoint.to_resume(True, tmp_path)
    assert all(f"checkpoint-{step} is corrupt" in str(error.value) for step in (1, 2, 3))


def test_a_renamed_checkpoint_is_refused(tmp_path):
    """A run would remove it as one of a later step than its own."""
    save(tmp_path, 3)
    save(tmp_path, 5)
    (tmp_path / "checkpoint-5").rename(tmp_path / "checkpoint-9")
    notes = []
    assert checkpoint.to_resume(True, tmp_path, say=notes.append).name == "checkpoint-3"
    assert len(notes) == 1 and "checkpoint-9 contains step 5" in notes[0]


def test_nothing_to_resume_from(tmp_path):
    with pytest.raises(ValueError, match="has no complete checkpoint"):
        checkpoint.to_resume(True, tmp_path / "none")
    with pytest.raises(ValueError, match="is not a folder"):
        checkpoint.to_resume(str(tmp_path / "none"), tmp_path)


def test_pruning_keeps_the_newest(tmp_path):
    for step in (2, 10, 9):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, None)
    assert len(checkpoint.complete(tmp_path)) == 3
    checkpoint.prune(tmp_path, 2)
    assert [folder.name for folder in checkpoint.complete(tmp_path)] == ["checkpoint-9", "checkpoint-10"]


def test_libraries_in_rust_meet_a_full_disk(tmp_path):
    from tokenizers import Tokenizer, models

    full = {"tokenizer.json": lambda folder: Tokenizer(models.BPE()).save("/dev/full")}
    with pytest.raises(OSError, match=r"tokenizer\.json: No space left on device"):
        Checkpoints(tmp_path).save(2, {}, full)


def test_the_later_ones_are_cleared(tmp_path):
    for step in (5, 10, 12):
        save(tmp_path, step)
    checkpoint.clear(tmp_path, above=5)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint-5"]
    checkpoint.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in Hugging Face's LlamaForCausalLM (nn.Linear is [out, in])."""
    kv = KV_HEADS * HEAD
    layer = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    names = {f"model.layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    embeddings = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (VOCABULARY, HIDDEN))
    return names | embeddings | {"model.norm.weight": (HIDDEN,)}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tie", [False, True])
def test_weights_are_in_the_hugging_face_layout(tmp_path, fused, tie):
    model = llama(fused, tie)
    model.eval()
    weights.save(model, tmp_path)
    stored, config = load_file(tmp_path / weights.FILE), json.loads((tmp_path / "config.json").read_text())
    wanted = shapes()
    if tie:
        del wanted["lm_head.weight"]
    assert {name: array.shape for name, array in stored.items()} == wanted
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["model_type"], config["torch_dtype"], config["hidden_act"]) == ("llama", "float32", "silu")
    assert (config["num_key_value_heads"], config["tie_word_embeddings"]) == (KV_HEADS, tie)

    ids = np.arange(17) * 37 % VOCABULARY
    golden = logits_of(stored, ids, config)
    with paddle.no_grad():
        logits = model(paddle.to_tensor(ids[None]))[0].numpy()[0]
    # fp32 sums of up to 192 terms, a dozen in a row: 2^-24 * sqrt(192 * 12) of the largest logit
    assert np.abs(logits - golden).max() < 2**-24 * 48 * np.abs(golden).max() * 4


def test_the_configuration_names_the_special_tokens_of_the_tokenizer(tmp_path):
    ids = {"bos_token_id": 7, "eos_token_id": 8, "pad_token_id": None}
    weights.save(build(parse([]), llama().config, SimpleNamespace(**ids)), tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {name: written[name] for name in ids} == ids
    assert LlamaConfig.from_pretrained(str(tmp_path)).bos_token_id == 7


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("fused", [False, True])
def test_weights_come_back_bit_for_bit(tmp_path, dtype, fused):
    model, other = llama(fused, dtype=dtype), llama(fused=not fused, dtype=dtype, seed=2)
    weights.save(model, tmp_path)
    weights.load(other, tmp_path)
    before, after = weights.to_upstream(model), weights.to_upstream(other)
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name].view(np.uint8), after[name].view(np.uint8), err_msg=name)


def test_paddlenlp_reads_the_files(tmp_path):
    model = llama(fused=True, dtype="bfloat16")
    weights.save(model, tmp_path)
    read = AutoModelForCausalLM.from_pretrained(str(tmp_path), convert_from_torch=True, dtype="bfloat16")
    before, after = weights.to_upstream(model), weights.to_upstream(read)
    assert all((before[name] == after[name]).all() for name in before)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    model = llama(fused=True)
    upstream = weights.to_upstream(model)
    lacking = dict(upstream)
    del lacking["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(ValueError, match=r"lack model.layers.1.self_attn.k_proj.weight"):
        weights.from_upstream(model, lacking)
    with pytest.raises(ValueError, match=r"hold model.layers.2.mlp"):
        weights.from_upstream(
            model, upstream | {"model.layers.2.mlp.up_proj.weight": upstream["lm_head.weight"]}
        )
    wide = {"model.embed_tokens.weight": np.zeros((VOCABULARY + 1, HIDDEN), np.float32)}
    with pytest.raises(ValueError, match=r"model.embed_tokens.weight is \[97, 128\] in the file"):
        weights.from_upstream(model, upstream | wide)
    with pytest.raises(ValueError, match=r"holds no .safetensors file"):
        weights.load(model, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(ValueError, match="safetensors"):
        weights.load(model, tmp_path)
