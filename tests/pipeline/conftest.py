"""The folder of a very small Llama with a tokenizer of bytes, in either library of models."""

import json
import shutil

import pytest

VOCABULARY, POSITIONS = 300, 64
TEXT = "def each(x):\n    for y in x:\n        yield y  # Grüße\n" * 20
CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
FIELDS = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,  # far apart logits, so that no two are equal after rounding
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    import paddle

    from llm_npu import patches
    from llm_npu.data.text.corpus import corpus
    from llm_npu.data.text.tokenizer import trained_tokenizer
    from llm_npu.models import families, presets, weights

    work = tmp_path_factory.mktemp("pipeline")
    (work / "text.txt").write_text(TEXT)
    model_folder = work / "model"
    shutil.copytree(trained_tokenizer(corpus(work / "text.txt"), VOCABULARY, str(work)), model_folder)
    (model_folder / "chat_template.jinja").write_text(CHAT)
    (model_folder / "config.json").write_text(json.dumps(FIELDS))
    patches.apply()
    paddle.seed(5)
    weights.save(families.new_model(presets.model_config(str(model_folder))), model_folder)
    return model_folder


@pytest.fixture(scope="module", autouse=True)
def forget_switches():
    """A function: no call of ``apply_fused_kernel`` is in force, as before and after each file."""
    from llm_npu.models import library
    from llm_npu.surgery.compat import in_force

    def forget():
        library.after_each_build(None)
        in_force.clear()

    forget()
    yield forget
    forget()


@pytest.fixture
def with_config(folder, tmp_path):
    """A function: a copy of the folder with the fields of a generation_config.json."""

    def copy(**fields):
        shutil.copytree(folder, tmp_path / "model")
        (tmp_path / "model/generation_config.json").write_text(json.dumps(fields))
        return tmp_path / "model"

    return copy
