"""What the files of a tokenizer's folder say is used, refused or reported."""

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer

from llm_npu.config import ModelArguments
from llm_npu.core.errors import UserError
from llm_npu.data.indexed import open_indexed, write_indexed
from llm_npu.data.pipeline import documents, tokenizer_for
from llm_npu.data.text import chat_template, encoding
from llm_npu.data.text.corpus import Document, corpus
from llm_npu.data.text.tokenizer import (
    copy_tokenizer,
    fingerprint,
    load_tokenizer,
    trained_tokenizer,
    vocabulary_size,
)

TEXT = "def greet(name):\n    return f'Hello, {name}!'\n" * 20
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.txt").write_text(TEXT)
    return trained_tokenizer(corpus(folder / "a.txt"), 300, str(folder / "cache"))


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "tokenizer")


def ids(tokenizer, text):
    (parts_of_text,) = ([*parts] for parts in encoding.encoded(tokenizer, [Document("a text", [text])]))
    return np.concatenate(parts_of_text).tolist()


def saved(folder, change):
    rust = Tokenizer.from_file(str(folder / "tokenizer.json"))
    change(rust)
    rust.save(str(folder / "tokenizer.json"))


def edited(file, **fields):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rust: rust.enable_truncation(16), "truncates texts to 16 tokens"),
        (lambda rust: rust.enable_padding(length=50, pad_token="<|unknown|>"), "pads texts"),
        (lambda rust: setattr(rust.model, "dropout", 0.5), "drops merges at random"),
    ],
)
def test_settings_of_training_do_not_change_texts(trained, folder, change, words):
    good = load_tokenizer(trained)
    whole = ids(good, TEXT)
    saved(folder, change)
    tokenizer = load_tokenizer(folder)
    assert ids(tokenizer, TEXT) == whole and len(whole) > 100
    assert ids(tokenizer, "a") == ids(good, "a")
    assert encoding.ids(tokenizer, ["a"])[0].tolist() == encoding.ids(good, ["a"])[0].tolist()
    assert tokenizer.pad_token == good.pad_token
    assert [words in note for note in tokenizer.notes] == [True]
    assert fingerprint(tokenizer) == fingerprint(good)
    assert good.notes == ()


def test_ids_with_gaps_are_kept(trained, folder, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    far = max(vocabulary, key=vocabulary.get)
    vocabulary[far] = 70019
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert vocabulary_size(tokenizer) == 70020
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode([70019])
    assert ids(tokenizer, text) == [70019]
    (tmp_path / "a.txt").write_text(text)
    write_indexed(
        tmp_path / "p", documents(corpus(tmp_path / "a.txt"), tokenizer), vocabulary_size(tokenizer)
    )
    assert open_indexed(tmp_path / "p").tokens.tolist() == [70019, 2]
    named = ModelArguments(tokenizer_name_or_path=str(folder))
    with pytest.raises(UserError, match=r"ids up to 70019, .* llama-tiny has 70019 tokens"):
        tokenizer_for(named, corpus(tmp_path), 70019)
    tokenizer_for(named, corpus(tmp_path), 70020)


def test_an_id_outside_is_never_stored_as_another(tmp_path):
    for number, size in ((70019, 320), (-1, 320), (1 << 32, 1 << 20)):
        with pytest.raises(UserError, match=f"token id {number}"):
            write_indexed(tmp_path / "p", [np.array([5, number])], size)
    write_indexed(tmp_path / "p", [np.array([65535])], 65536)
    assert open_indexed(tmp_path / "p").tokens.dtype == np.uint16


def added_tokens_file(folder, size):
    edited(folder / "added_tokens.json", **{"<|im_end|>": size + 1, "<|im_start|>": size})
    edited(folder / "tokenizer_config.json", additional_special_tokens=["<|im_start|>", "<|im_end|>"])


def added_tokens_decoder(folder, size):
    tokens = {"<|im_start|>": size, "<|im_end|>": size + 1}
    decoder = {str(number): {"content": token, "special": True} for token, number in tokens.items()}
    edited(folder / "tokenizer_config.json", added_tokens_decoder=decoder)


def special_tokens_map(folder, size):
    edited(folder / "added_tokens.json", **{"<|im_start|>": size, "<|im_end|>": size + 1})
    both = [{"content": "<|im_start|>"}, "<|im_end|>"]
    edited(folder / "special_tokens_map.json", additional_special_tokens=both, eos_token="<|im_end|>")
    (folder / "tokenizer_config.json").unlink()


WAYS = [added_tokens_file, added_tokens_decoder, special_tokens_map]


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS)
def test_added_tokens_are_tokens(trained, folder, tmp_path, way):
    size = vocabulary_size(load_tokenizer(trained))
    way(folder, size)
    tokenizer = load_tokenizer(folder)
    assert encoding.ids(tokenizer, ["<|im_start|>"])[0].tolist() == [size]
    assert len(ids(tokenizer, "<|im_start|>")) > 1  # plain text in a document
    assert vocabulary_size(tokenizer) == size + 2
    chat_template.attach(tokenizer, CHATML)
    (ids_of_chat,) = chat_template.ids_of(tokenizer, [chat_template.rendered(tokenizer, CHAT, False).text])
    assert (ids_of_chat.count(size), ids_of_chat.count(size + 1)) == (2, 2)
    assert tokenizer.notes == ()
    # what is written for the next program says the same
    copy_tokenizer(folder, tmp_path / "copy")
    chat_template.save(tokenizer, tmp_path / "saved")
    for other in ("copy", "saved"):
        again = load_tokenizer(tmp_path / other)
        assert fingerprint(again) == fingerprint(tokenizer)


def test_tokens_without_an_id_become_new_ones_and_that_is_said(trained, folder):
    size = vocabulary_size(load_tokenizer(trained))
    edited(
        folder / "tokenizer_config.json", extra_special_tokens={"image_token": "<|image|>"}, pad_token="<pad>"
    )
    tokenizer = load_tokenizer(folder)
    assert encoding.ids(tokenizer, ["<|image|>"])[0].tolist() == [size]
    assert tokenizer.pad_token_id == size + 1
    assert ["<|image|>" in note or "<pad>" in note for note in tokenizer.notes] == [True, True]


@pytest.mark.parametrize(
    ("file", "fields", "words"),
    [
        ("added_tokens.json", {"<a>": 9000}, "the next free id is"),
        ("added_tokens.json", {"<|end_of_text|>": 7}, "its id in the vocabulary is 2"),
        ("added_tokens.json", {"<a>": -1}, "not a whole number"),
        ("added_tokens.json", {"<a>": "7"}, "not a whole number"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "must be an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "<a>"}}, "not a whole number"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"2": {"content": 3}}}, "is not a token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"2": {"content": "<b>"}}}, "the next free id"),
        ("tokenizer_config.json", {"additional_special_tokens": "<a>"}, "must be a list"),
        ("tokenizer_config.json", {"additional_special_tokens": [""]}, "is not a token"),
        ("special_tokens_map.json", {"pad_token": ["x"]}, "pad_token is"),
    ],
)  # fmt: skip
def test_tokens_that_contradict_or_are_none_are_refused(folder, file, fields, words):
    edited(folder / file, **fields)
    with pytest.raises(UserError, match=words):
        load_tokenizer(folder)


def test_two_files_that_contradict_each_other_are_refused(trained, folder):
    size = vocabulary_size(load_tokenizer(trained))
    edited(folder / "tokenizer_config.json", added_tokens_decoder={str(size): {"content": "<a>"}})
    for tokens in ({"<a>": size + 1}, {"<b>": size}):
        edited(folder / "added_tokens.json", **tokens)
        with pytest.raises(UserError, match="contradicts"):
            load_tokenizer(folder)
        (folder / "added_tokens.json").unlink()


def test_a_llamas_prompt_begins_with_its_begin_of_text_token(folder):
    edited(folder / "tokenizer_config.json", add_bos_token=True, tokenizer_class="LlamaTokenizerFast")
    tokenizer = load_tokenizer(folder)
    assert encoding.ids(tokenizer, ["a"], frame=True)[0][0] == tokenizer.bos_token_id
    assert tokenizer.bos_token_id not in encoding.ids(tokenizer, ["a"])[0]


def test_text_is_decoded_as_it_is(folder):
    tokenizer = load_tokenizer(folder)
    text = "data [0 : 100] , don 't  \t x"
    assert encoding.decoded(tokenizer, encoding.ids(tokenizer, [text])) == [text]
