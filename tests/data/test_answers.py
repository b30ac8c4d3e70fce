"""Conversations -> samples: what is learnt, what is cut, what is held out, what is cached."""

import json
import shutil

import numpy as np
import pytest

from llm_npu.config import DataArguments
from llm_npu.data import find, load
from llm_npu.data.text import chat_template
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer

VOCABULARY = 270
SUMS = [(f"{a} + {b}?", f"{a + b}" + "!" * a) for a in range(8) for b in range(1, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("User: and Assistant: " * 9)
    return trained_tokenizer(corpus(text), VOCABULARY, str(text.parent))


@pytest.fixture
def samples(folder, tmp_path):
    """A function from pairs of question and answer and arguments to the samples and the tokenizer."""

    def of(pairs, dev=None, vocab_size=VOCABULARY, need_valid=True, tokenizer=folder, **given):
        source = tmp_path / "data"
        source.mkdir(exist_ok=True)
        for name, part in (("train.json", pairs), ("dev.json", dev or [])):
            lines = (json.dumps({"src": question, "tgt": answer}) for question, answer in part)
            (source / name).write_text("".join(line + "\n" for line in lines))
        if dev is None:
            (source / "dev.json").unlink()
        arguments = {"split": "8,1,1", "max_seq_length": 64, "data_cache": str(tmp_path / "cache")}
        data = DataArguments(stage="sft", input_dir=str(source), **arguments | given)
        tokenizer = load_tokenizer(tokenizer)
        return load(data, find(data), tokenizer, vocab_size, need_valid=need_valid), tokenizer

    return of


def texts(tokenizer, sample):
    """The text of each conversation in a sample, and what is learnt of it."""
    for part, length in zip(np.cumsum(sample["seqlens"]), sample["seqlens"], strict=True):
        ids, labels = (sample[name][part - length : part] for name in ("input_ids", "labels"))
        assert labels[-1] == -100  # the token after a conversation is another one's
        learnt = labels[:-1] != -100
        np.testing.assert_array_equal(labels[:-1][learnt], ids[1:][learnt])
        yield tokenizer.decode(ids.tolist()), tokenizer.decode(ids[1:][learnt].tolist())


@pytest.mark.parametrize("packing", ["none", "first_fit", "length_grouped"])
def test_answers_are_learnt_with_their_end_and_nothing_else(samples, packing):
    parts, tokenizer = samples(SUMS, packing=packing)
    found = [each for index in range(len(parts.train)) for each in texts(tokenizer, parts.train[index])]
    bos, eos = "<|begin_of_text|>", "<|end_of_text|>"
    train = SUMS[:19]
    assert sorted(found) == sorted(
        (f"{bos}User: {question}\nAssistant: {answer}{eos}", f" {answer}{eos}") for question, answer in train
    )
    assert [parts.train.labelled(i) for i in range(len(parts.train))] == [
        (parts.train[i]["labels"] != -100).sum() for i in range(len(parts.train))
    ]
    assert max(len(parts.train[i]["input_ids"]) for i in range(len(parts.train))) <= 64
    assert (len(parts.train), len(parts.valid)) == (19, 3) or packing != "none"


def test_long_conversations_lose_their_end_and_the_notes_say_so(samples):
    long = [("short", "x" * 100), ("y" * 100, "never reached"), *SUMS[:8]]
    parts, tokenizer = samples(long, max_seq_length=64)
    cut, learnt = next(texts(tokenizer, parts.train[0]))
    assert len(parts.train[0]["input_ids"]) == 64
    assert cut.startswith("<|begin_of_text|>User: short") and set(learnt) == {" ", "x"}
    assert not any(
        "y" * 9 in text for i in range(len(parts.train)) for text, _ in texts(tokenizer, parts.train[i])
    )
    assert parts.notes[0].startswith("7 conversations in 7 samples, filled to ")
    assert parts.notes[1:] == (
        "the tokenizer has no chat template: turns are formatted as User: and Assistant:",
        "1 conversations of more than 64 tokens are truncated",
        "1 conversations are dropped: no answer begins within 64 tokens",
    )


def test_a_dev_file_is_what_is_held_out(samples):
    parts, tokenizer = samples(SUMS, dev=[("held", "out")])
    assert (len(parts.train), len(parts.valid), len(parts.test)) == (len(SUMS), 1, 0)
    assert [learnt for _, learnt in texts(tokenizer, parts.valid[0])] == [" out<|end_of_text|>"]


def test_a_template_file_takes_the_place_of_the_tokenizers(samples, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("{% for each in messages %}<{{ each.content }}>{% endfor %}")
    parts, tokenizer = samples(SUMS, chat_template=str(file))
    assert next(texts(tokenizer, parts.train[0])) == ("<0 + 1?><1>", "<1>")
    assert chat_template.source_of(tokenizer) == file.read_text()
    assert len(parts.notes) == 1


@pytest.mark.parametrize(
    ("pairs", "given", "sentence"),
    [
        ([], {}, "contains no conversations"),
        (
            SUMS[:3],
            {"split": "949,50,1"},
            r"the validation part of .* has none of its 3 conversations .* or --do_eval false",
        ),
        (
            SUMS,
            {"max_seq_length": 5},
            "no conversation of the training part of .* has an answer in its first 5",
        ),
        (SUMS, {"vocab_size": 60}, "they were made with another tokenizer"),
    ],
)
def test_data_without_anything_to_learn_are_refused(samples, pairs, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        samples(pairs, **given)[0].train[0]


def test_few_conversations_train_without_evaluation(samples):
    parts, _ = samples(SUMS[:3], need_valid=False, split="1,0,0")
    assert len(parts.train) == 3


def test_tokenised_conversations_are_cached_until_something_changes(samples, folder, tmp_path):
    def folders(*arguments, **given):
        samples(*arguments, **given)
        return len(list((tmp_path / "cache").glob("conversations-*")))

    assert [folders(SUMS), folders(SUMS), folders(SUMS, packing="first_fit")] == [1, 1, 1]
    assert folders(SUMS[1:]) == 2
    (tmp_path / "own.jinja").write_text("{% for each in messages %}{{ each.content }};{% endfor %}")
    assert folders(SUMS, chat_template=str(tmp_path / "own.jinja")) == 3
    other = tmp_path / "other"  # whose template inserts another token
    shutil.copytree(folder, other)
    config = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<|end_of_text|>"}))
    assert folders(SUMS, tokenizer=other) == 4


def test_what_a_template_refuses_is_named_by_its_line(samples, tmp_path):
    (tmp_path / "own.jinja").write_text("{{ raise_exception('no') if messages[0].content == '0 + 2?' }}x")
    with pytest.raises(ValueError, match=r"train\.json, line 2: the chat template rejects it: no"):
        samples(SUMS, chat_template=str(tmp_path / "own.jinja"))
