"""Odd records: each is trained, refused in one sentence, or counted; nothing in one is lost without a word.

Every text in a record is a word of its own. It must be in the text that is trained, or its key must be in the
counts of what is not used, or the record must be refused.
"""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_npu.data import answers, pairs
from llm_npu.data.text import chat_template, turns
from llm_npu.data.text.conversations import Conversations
from llm_npu.data.text.preferences import Preferences
from llm_npu.data.text.records import Unused

pytestmark = pytest.mark.sampled

TEMPLATES = Path(__file__).parent / "templates"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SOURCES = [CHATML, chat_template.DEFAULT]
SOURCES += [(TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in ("qwen3", "deepseek_r1")]
WORD = re.compile(r"w\d+w")
WORDS = st.just("WORD")  # replaced by a word of its own before a record is written
ODD = st.one_of(
    WORDS, st.none(), st.booleans(), st.integers(-2, 2), st.just(0.5), st.just(""), st.just([]), st.just({}),
    st.lists(WORDS, max_size=2), st.dictionaries(st.sampled_from(["a", "name", "role"]), WORDS, max_size=2),
    st.just(float("nan")), st.just("\ud800"), st.just("\x1b[31m\n"),
)  # fmt: skip


def some(required, optional):
    """Objects with the keys of ``required``, and at most two of ``optional``."""
    chosen = st.lists(st.sampled_from(sorted(optional)), max_size=2, unique=True)
    added = chosen.flatmap(lambda names: st.fixed_dictionaries({name: optional[name] for name in names}))
    return st.builds(lambda first, more: first | more, st.fixed_dictionaries(required), added)


def conversation(role, user, assistant, content):
    """Lists of messages in turn."""
    answer = some(
        {role: st.just(assistant), content: WORDS},
        {
            "weight": st.sampled_from([0, 1]), "loss": st.booleans(), "train": st.none(), "name": WORDS,
            "reasoning_content": WORDS, "tool_call_id": WORDS, "images": st.just([]), "other": ODD,
        },
    )  # fmt: skip
    question = some({role: st.just(user), content: WORDS}, {"name": WORDS, "weight": st.sampled_from([0, 1])})
    start = st.sampled_from([[], [], [{role: "system", content: "WORD"}]])
    turns = st.lists(st.tuples(question, answer), min_size=1, max_size=3)
    return st.builds(lambda first, pairs: [*first, *itertools.chain(*pairs)], start, turns)


CALLING = [
    {"role": "user", "content": "WORD"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "WORD", "arguments": '{"a": "WORD"}'}]},
    {"role": "tool", "content": "WORD"},
    {"role": "assistant", "content": "WORD"},
]
OPENAI = st.one_of(conversation("role", "user", "assistant", "content"), st.just(CALLING))
SHAREGPT = conversation("from", "human", "gpt", "value")
HISTORY = st.lists(st.lists(WORDS, min_size=2, max_size=2), max_size=2)
TEXTS = {size: st.lists(WORDS, min_size=size, max_size=size) for size in range(4)}
ANSWER = st.one_of(
    WORDS, conversation("role", "user", "assistant", "content").map(lambda turn_list: turn_list[-1])
)
COMMON = {
    "system": WORDS, "tools": st.sampled_from([[{"name": "WORD"}], '[{"name": "f"}]', None, []]), "id": ODD,
    "score": st.just(1.5), "conversations": st.none(), "images": st.just([]),
}  # fmt: skip
LABELS = st.lists(st.sampled_from([0, 1]), min_size=2, max_size=2)
SFT = [
    some({"messages": OPENAI}, COMMON),
    some({"conversations": SHAREGPT}, {**COMMON, "conversations": SHAREGPT}),
    some({"instruction": WORDS, "output": WORDS}, {**COMMON, "input": WORDS, "history": HISTORY}),
    some({"query": WORDS, "response": WORDS}, {**COMMON, "history": HISTORY}),
    some({"src": WORDS, "tgt": WORDS}, {**COMMON, "context": st.just({"system": "WORD"})}),
    some(
        {"src": TEXTS[2], "tgt": TEXTS[2]}, {**COMMON, "label": LABELS, "is_system": st.sampled_from([0, 1])}
    ),
]
BOTH = {"chosen": ANSWER, "rejected": ANSWER}
DPO = [
    some({"prompt": WORDS, **BOTH}, COMMON),
    some({"messages": OPENAI.map(lambda turn_list: turn_list[:-1]), **BOTH}, COMMON),
    some({"messages": OPENAI, "rejected_response": ANSWER}, COMMON),
    some({"instruction": WORDS, **BOTH}, {**COMMON, "history": HISTORY, "output": WORDS}),
    some({"query": WORDS, "response": WORDS, "rejected_response": WORDS}, COMMON),
    some({"src": TEXTS[2], "tgt": TEXTS[1], "response": TEXTS[2], "sort": st.permutations([0, 1])}, COMMON),
]
KEYS = ("messages", "instruction", "input", "output", "history", "src", "tgt", "label", "is_system", "system")
KEYS += ("tools", "prompt", "chosen", "rejected", "rejected_response", "sort", "images", "context", "weight")


def records(layouts):
    """Records of the layouts, some of them with a key that holds something odd."""
    odd = st.dictionaries(st.sampled_from(KEYS), ODD, min_size=1, max_size=1)
    return st.builds(
        lambda first, more: first | more, st.one_of(layouts), st.one_of(st.just({}), st.just({}), odd)
    )


def with_words(value, numbers):
    if value == "WORD":
        return f"w{next(numbers)}w"
    if isinstance(value, dict):
        return {name: with_words(item, numbers) for name, item in value.items()}
    return [with_words(item, numbers) for item in value] if isinstance(value, (list, tuple)) else value


class Plain:
    """A tokenizer of one token per character, with what templates read."""

    special_tokens_map = {"bos_token": "<s>", "eos_token": "</s>"}  # noqa: RUF012

    def __init__(self, source):
        self.chat_template, self.init_kwargs = source, {"chat_template": source}

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(letter) for letter in text]}


def words(value, path=()):
    """(word, the keys that lead to it) of a record."""
    if isinstance(value, str):
        yield from ((word, path) for word in WORD.findall(value))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from words(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from words(item, path)


def check_that_nothing_is_lost(record, used: str, unread, omitted: Counter):
    named = {*unread, *(name.removeprefix("messages[].") for name in omitted)}
    for word, path in words(record):
        dropped = path == ("tgt",) and "tgt[0]" in unread
        assert word in used or named & {*path} or dropped, (word, path, unread, omitted)


def written(folder, record):
    file = folder / "record.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return str(file)


def sentence(error, file):
    assert str(error).startswith(f"{file}, line 1") and "\n" not in str(error) and len(str(error)) < 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.mark.parametrize("source", SOURCES, ids=["chatml", "default", "qwen3", "deepseek_r1"])
@settings(max_examples=100)
@given(record=records(SFT))
def test_a_record_is_trained_refused_or_counted(folder, source, record):
    record, tokenizer = with_words(record, itertools.count()), Plain(source)
    file, unused = written(folder, record), Unused()
    omitted = turns.Omitted(lambda *arguments: turns.samples(tokenizer, *arguments), unused)
    try:
        (conversation,) = Conversations.find(file).conversations()
        encoded = answers._encode_conversation(tokenizer, conversation, omitted)
    except ValueError as error:
        return sentence(error, file)
    messages = conversation.messages
    trained = [
        n for n, m in enumerate(messages) if m["role"] == "assistant" and n not in conversation.context
    ]
    text = "".join("".join(map(chr, ids)) for ids, _ in encoded)
    after = str(messages[trained[-1] + 1 :]) if trained else str(record)  # a note counts such conversations
    contexts = "".join(str(messages[number]) for number in conversation.context)
    check_that_nothing_is_lost(record, text + contexts + after, conversation.unread, unused.omitted)
    learnt = "".join("".join(map(chr, ids[mask])) for ids, mask in encoded)
    for number, turn in enumerate(messages):
        for word in WORD.findall(turn["content"] or ""):
            assert learnt.count(word) == (number in trained), word


@pytest.mark.parametrize("source", SOURCES, ids=["chatml", "default", "qwen3", "deepseek_r1"])
@settings(max_examples=100)
@given(record=records(DPO))
def test_a_pair_is_trained_refused_or_counted(folder, source, record):
    record, tokenizer = with_words(record, itertools.count()), Plain(source)
    file, unused = written(folder, record), Unused()
    omitted = turns.Omitted(lambda *arguments: turns.last_answer(tokenizer, *arguments), unused)
    try:
        (pair,) = Preferences.find(file).pairs()
        prompt, *both = pairs._encode_pair(tokenizer, pair, omitted)
    except ValueError as error:
        return sentence(error, file)
    text = "".join("".join(map(chr, ids)) for ids in (prompt, *both))
    check_that_nothing_is_lost(record, text, pair.unread, unused.omitted)
    for answer, ids in zip((pair.chosen, pair.rejected), both, strict=True):
        for word in WORD.findall(answer["content"] or ""):
            assert "".join(map(chr, ids)).count(word) == 1 and word not in "".join(map(chr, prompt))
