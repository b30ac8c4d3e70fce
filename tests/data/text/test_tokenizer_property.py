"""Odd tokenizer folders: a tokenizer that does what its files say, or one sentence; memory and time."""

import json
import resource
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import tokenizer_process
from llm_npu.data.text import encoding
from llm_npu.data.text.corpus import Document, corpus
from llm_npu.data.text.tokenizer import fingerprint, load_tokenizer, trained_tokenizer, vocabulary_size

TEXT = "def greet(name):\n    return f'Grüße, {name}! 你好 🙂'  <a> <|end_of_text|>\n"
SECONDS = 40  # of processor time, of both processes
MEMORY = 256 << 20  # bytes of this process

odd = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2**33), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.sampled_from(["<a>", "<b>", "<|end_of_text|>", "a", "def", ""])
ids = st.sampled_from([0, 2, 7, 299, 300, 301, 70019, 2**22, 2**32 - 2])
token = st.one_of(names, st.fixed_dictionaries({"content": names, "special": st.booleans()}), odd)
replaced = st.builds(
    lambda pattern, content, times: {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": pattern}, "content": content}] * times,
    },
    st.sampled_from(["a", "e", " "]),
    st.sampled_from(["", "b", "e" * 9, "x" * 100_000]),
    st.integers(1, 12),
)
ISOLATED = {"behavior": "Isolated", "invert": False}
TOKENIZER = {
    "truncation": st.one_of(
        st.builds(
            lambda n: {"direction": "Right", "max_length": n, "strategy": "LongestFirst", "stride": 0}, ids
        ),
        odd,
    ),
    "padding": st.one_of(
        st.builds(
            lambda n: {
                "strategy": {"Fixed": n},
                "direction": "Left",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<a>",
            },
            st.integers(0, 500),
        ),
        odd,
    ),
    "normalizer": st.one_of(replaced, st.sampled_from([{"type": "NFKC"}, {"type": "Strip"}]), odd),
    "pre_tokenizer": st.one_of(
        st.builds(
            lambda regex: {
                "type": "Split",
                "pattern": {"Regex": regex},
                "behavior": "Isolated",
                "invert": False,
            },
            st.sampled_from(["(a+)+$", r"\s+", "(", "(e|e?)*x"]),
        ),
        odd,
    ),
    "decoder": odd,
    "post_processor": odd,
    "added_tokens": odd,
    "model": odd,
}
CONFIG = {
    "eos_token": token,
    "pad_token": token,
    "bos_token": token,
    "add_bos_token": st.one_of(st.booleans(), odd),
    "tokenizer_class": st.one_of(st.just("LlamaTokenizer"), odd),
    "added_tokens_decoder": st.one_of(st.dictionaries(ids.map(str), token, max_size=3), odd),
    "additional_special_tokens": st.one_of(st.lists(token, max_size=3), odd),
    "extra_special_tokens": st.one_of(st.dictionaries(st.text(max_size=3), token, max_size=2), odd),
    "chat_template": odd,
}
ADDED = st.one_of(st.dictionaries(names, st.one_of(ids, odd), max_size=3), odd)


def some(fields):
    """Values for up to two of ``fields``."""
    few = st.lists(st.sampled_from(sorted(fields)), max_size=2, unique=True)
    return few.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


changes = st.fixed_dictionaries(
    {},
    optional={
        "tokenizer.json": some(TOKENIZER),
        "tokenizer_config.json": some(CONFIG),
        "special_tokens_map.json": some(CONFIG),
        "added_tokens.json": ADDED,
        "vocabulary": st.dictionaries(names, ids, max_size=2),
        "dropout": st.floats(0, 1),
    },
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.txt").write_text(TEXT * 20)
    return trained_tokenizer(corpus(folder / "a.txt"), 300, str(folder / "cache"))


def write(folder, changes):
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if file in changes:
            content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
            (folder / file).write_text(json.dumps(content | changes[file]))
    if "added_tokens.json" in changes:
        (folder / "added_tokens.json").write_text(json.dumps(changes["added_tokens.json"]))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= changes.get("vocabulary", {})
    content["model"]["dropout"] = changes.get("dropout")
    (folder / "tokenizer.json").write_text(json.dumps(content | changes.get("tokenizer.json", {})))


def as_a_whole(folder):
    """The ids of ``TEXT`` by tokenizer.json alone, without what changes training text."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["dropout"] = None
    plain = json.dumps(content | {"truncation": None, "padding": None})
    with tokenizer_process.TokenizerProcess(plain, "it") as process:
        return process.ids([TEXT], special=False, frame=False)[0].tolist()


def check(folder, changes):
    tokenizer = load_tokenizer(folder)
    (parts,) = ([*parts] for parts in encoding.encoded(tokenizer, [Document("a text", [TEXT])]))
    all_numbers = [number for part in parts for number in part.tolist()]
    encoding.decoded(tokenizer, [all_numbers])
    assert max(all_numbers, default=0) < vocabulary_size(tokenizer) <= tokenizer_process.LARGEST_ID + 100
    rust = tokenizer.backend_tokenizer
    # what the files say about tokens holds
    added = dict(changes.get("added_tokens.json") or {})
    decoder = changes.get("tokenizer_config.json", {}).get("added_tokens_decoder") or {}
    contents = [
        (entry["content"] if isinstance(entry, dict) else entry, int(number))
        for number, entry in decoder.items()
    ]
    for content, number in [*added.items(), *contents]:
        assert rust.token_to_id(content) == number
    # and plain text that spells no added token is what tokenizer.json makes of it
    specials = {
        special.content for special in rust.get_added_tokens_decoder().values() if not special.special
    }
    if not any(content in TEXT for content in specials):
        assert all_numbers == as_a_whole(folder)
    assert fingerprint(load_tokenizer(folder)) == fingerprint(tokenizer)


def used():
    return [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


@pytest.mark.parametrize("examples", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_odd_folders_are_used_as_they_say_or_refused(trained, examples, monkeypatch):
    monkeypatch.setattr(tokenizer_process, "MOST_MEMORY", 192 << 20)
    monkeypatch.setattr(tokenizer_process, "MOST_SECONDS", 3)
    load_tokenizer(trained)  # imports the library of models
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(max_examples=examples)
    @given(changes)
    def examine(changes):
        start = sum(used())
        with tempfile.TemporaryDirectory() as parent:
            folder = shutil.copytree(trained, Path(parent) / "t")
            write(folder, changes)
            try:
                check(folder, changes)
            except UserError as error:
                assert "\n" not in str(error) and len(str(error)) < 1000, error
        assert sum(used()) - start < SECONDS

    examine()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY
