"""Conversations -> samples: what is learnt, what is cut, what is held out, what is cached."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from llm_npu.config import DataArguments
from llm_npu.data.pipeline import find, load
from llm_npu.data.text import chat_template
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer

pytestmark = pytest.mark.sampled

VOCABULARY = 270
SUMS = [(f"{a} + {b}?", f"{a + b}" + "!" * a) for a in range(8) for b in range(1, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("User: and Assistant: " * 9)
    return trained_tokenizer(corpus(text), VOCABULARY, str(text.parent))


@pytest.fixture
def samples(folder, tmp_path):
    """A function from records, or pairs of question and answer, and arguments to samples and tokenizer."""

    def of(pairs, dev=None, vocab_size=VOCABULARY, need_valid=True, tokenizer=folder, **fields):
        source = tmp_path / "data"
        source.mkdir(exist_ok=True)
        for name, part in (("train.json", pairs), ("dev.json", dev or [])):
            records = (p if isinstance(p, dict) else {"src": p[0], "tgt": p[1]} for p in part)
            lines = (json.dumps(record) for record in records)
            (source / name).write_text("".join(line + "\n" for line in lines))
        if dev is None:
            (source / "dev.json").unlink()
        arguments = {"split": "8,1,1", "max_seq_length": 64, "data_cache": str(tmp_path / "cache")}
        data = DataArguments(stage="sft", input_dir=str(source), **arguments | fields)
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
    decoded = [text for index in range(len(parts.train)) for text in texts(tokenizer, parts.train[index])]
    bos, eos = "<|begin_of_text|>", "<|end_of_text|>"
    train = SUMS[:19]
    assert sorted(decoded) == sorted(
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
    kept, template, truncated, dropped = parts.notes
    assert kept.startswith("7 conversations packed into 7 samples, ")
    assert "no chat template" in template
    assert truncated.startswith("1 conversations of more than 64 tokens ")
    assert dropped.startswith("1 conversations are dropped: ") and "64 tokens" in dropped


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
    ("pairs", "fields", "sentence"),
    [
        ([], {}, "contains no conversations"),
        (SUMS[:3], {"split": "949,50,1"}, r"validation split .* 3 conversations .*--do_eval false"),
        (SUMS, {"max_seq_length": 5}, "training split .* first 5"),
        (SUMS, {"vocab_size": 60}, "another tokenizer"),
    ],
)
def test_data_without_anything_to_learn_are_refused(samples, pairs, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        samples(pairs, **fields)[0].train[0]


def test_few_conversations_train_without_evaluation(samples):
    parts, _ = samples(SUMS[:3], need_valid=False, split="1,0,0")
    assert len(parts.train) == 3


def test_tokenised_conversations_are_cached_until_something_changes(samples, folder, tmp_path):
    def folders(*arguments, **fields):
        samples(*arguments, **fields)
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
    (tmp_path / "own.jinja").write_text(
        "{{ raise_exception('no') if messages[0].content == '0 + 2?' }}"
        "{% for each in messages %}{{ each.content }};{% endfor %}"
    )
    with pytest.raises(ValueError, match=r"train\.json, line 2: .*: no"):
        samples(SUMS, chat_template=str(tmp_path / "own.jinja"))


TURNS = {"src": ["2 + 2?", "+ 1?", "+ 2?"], "tgt": ["4", "5", "7"]}


def learnt(tokenizer, part):
    return [text for index in range(len(part)) for text in texts(tokenizer, part[index])]


def test_a_template_that_rewrites_turns_gives_each_answer_its_context(samples):
    """Whole conversations are held out, however many texts they become."""
    qwen3 = Path(__file__).parent / "templates" / "qwen3.jinja"
    fields = {"chat_template": str(qwen3), "split": "2,2,0", "max_seq_length": 256}
    parts, tokenizer = samples([TURNS, SUMS[0], TURNS, SUMS[1]], **fields)
    assert (len(parts.train), len(parts.valid)) == (4, 4)
    thought = "<think>\n\n</think>\n\n"
    answers = learnt(tokenizer, parts.train)
    assert [answer for _, answer in answers] == [
        f"{thought}{text}<|im_end|>\n" for text in ("4", "5", "7", "1")
    ]
    assert answers[2][0].count(thought) == 1 and "assistant\n5<|im_end|>" in answers[2][0]
    assert parts.notes[0].startswith("4 texts of conversations packed into 4 samples")
    assert "2 of 4 conversations are expanded to a total of 8 texts" in parts.notes[1]


def test_marks_of_a_template_get_a_line(samples, tmp_path):
    (tmp_path / "own.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
        "[{% generation %}{{ m.content }}{% endgeneration %}]{% endif %}{% endfor %}"
        "{{ '[' if add_generation_prompt }}"
    )
    parts, tokenizer = samples(SUMS, chat_template=str(tmp_path / "own.jinja"))
    assert next(texts(tokenizer, parts.train[0])) == ("0 + 1?[1]", "1")
    (note,) = parts.notes[1:]
    assert "generation blocks" in note


def test_weights_decide_what_is_trained(samples):
    label = {**TURNS, "label": [0, 1, 0]}
    question, answered = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}
    nothing = {"messages": [question, answered]}
    parts, tokenizer = samples([label, nothing, label], split="1,0,0", need_valid=False)
    assert [answer for _, answer in learnt(tokenizer, parts.train)] == [" 5<|end_of_text|>"] * 2
    assert any("1 conversations are dropped: " in note for note in parts.notes)
    with pytest.raises(ValueError, match=r"answer.* weight 0"):
        samples([nothing], split="1,0,0", need_valid=False)


def test_what_is_not_used_is_counted_once_a_run(samples):
    reasoned = {"role": "assistant", "content": "4", "reasoning_content": "add"}
    record = {
        "messages": [{"role": "user", "content": "2 + 2?"}, reasoned],
        "id": 1,
        "tools": [{"name": "add"}],
    }
    for _ in range(2):  # also where the cache has the tokens
        parts, _ = samples(
            [record, *SUMS, {**record, "source": "x"}], dev=[{"src": "a", "tgt": "b", "id": 7}]
        )
        assert parts.notes[-2].endswith(": id (3 times), source (1 times)")
        assert parts.notes[-1].endswith(": messages[].reasoning_content (2 times), tools (2 times)")
