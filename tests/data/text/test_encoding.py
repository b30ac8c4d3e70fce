"""Text in pieces: the ids of the whole text, within bounded memory, whatever the tokenizer does."""

import itertools
import json
import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import tokenizer_process
from llm_npu.data.text import encoding
from llm_npu.data.text.corpus import Document

pytestmark = pytest.mark.sampled

ALPHABET = "ab  \n\t1.,é你好🙂"
SAMPLE = "".join(random.Random(0).choices(ALPHABET, k=4000)) + "aaaa bbbb abab 111 你好你好 <x>" * 50
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(model, trainer, pre=None, norm=None):
    rust = Tokenizer(model)
    if pre is not None:
        rust.pre_tokenizer = pre
    if norm is not None:
        rust.normalizer = norm
    rust.train_from_iterator([SAMPLE], trainer)
    rust.add_tokens([AddedToken("<x>", special=True), AddedToken("b a", normalized=False)])
    return rust


def bpe(pre=None, norm=None, **options):
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, **options
    )
    return trained(models.BPE(), trainer, pre, norm)


def llama2():
    """One word for the whole text: blanks are characters, and one is put in front."""
    return bpe(norm=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))


def unigram(split):
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    blanks = normalizers.Replace(Regex(r"\s"), " ")  # as sentencepiece does before it trains
    return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(split=split), blanks)


def word_piece():
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]"], show_progress=False)
    return trained(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30),
        trainer,
        pre_tokenizers.BertPreTokenizer(),
        normalizers.BertNormalizer(),
    )


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
KINDS = {
    "gpt2": lambda: bpe(BYTES),
    "gpt2 with a blank in front": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "qwen": lambda: bpe(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        ),
        normalizers.NFC(),
    ),
    "numbers of three digits": lambda: bpe(
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), BYTES])
    ),
    "llama2": llama2,
    "metaspace": lambda: bpe(pre_tokenizers.Metaspace()),
    "stripped": lambda: bpe(
        BYTES, normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    ),
    "unigram": lambda: unigram(split=True),
    "wordpiece": word_piece,
}


MODELS = ("gpt2", "llama2", "unigram", "wordpiece")  # the kinds that differ most


class Rust:
    """A tokenizer as far as `encoding` needs one."""

    def __init__(self, backend):
        self.backend_tokenizer = backend


@pytest.fixture(scope="module")
def trained_tokenizers():
    return {name: Rust(make()) for name, make in KINDS.items()}


@pytest.fixture
def small(monkeypatch):
    """Pieces that make small texts long."""
    for name, size in {"PIECE": 128, "CONTEXT": 48, "BATCH": 512, "LONGEST": 4096}.items():
        monkeypatch.setattr(encoding, name, size)


def in_pieces(tokenizer, text):
    (parts_of_text,) = ([*parts] for parts in encoding.encoded(tokenizer, [Document("a text", [text])]))
    return [part.tolist() for part in parts_of_text]


def as_a_whole(tokenizer, text):
    """The ids of the tokenizer that `encoding` uses, which is read from JSON.

    Reading changes scores of a unigram model in their last bit. It may then choose another of several equally
    likely segmentations of a word, such as a long run of one character.
    """
    rust = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rust.encode_special_tokens = True
    return rust.encode(text, add_special_tokens=False).ids


def texts():
    """Texts of hundreds of characters: words, runs of one character, and no blanks at all."""
    words = st.sampled_from(
        ["a", "ab", "abab", "b a", "<x>", "111", "1", "é", "你好", "🙂", ".", ",\n", "\n", "\t"]
    )
    joint = st.sampled_from(["", " ", "  ", "\n"])
    run = st.builds(lambda word, number: word * number, words, st.integers(1, 150))
    several = st.builds(
        lambda parts, between: between.join(parts), st.lists(words, min_size=50, max_size=150), joint
    )
    return st.lists(st.one_of(run, several), min_size=1, max_size=8).map("".join)


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(key=lambda parameters: parameters["name"] if parameters["name"] in MODELS else None)
def test_ids_of_pieces_are_those_of_the_whole(trained_tokenizers, small, name, examples):
    with encoding.running(trained_tokenizers[name]):

        @settings(max_examples=examples)
        @given(texts())
        def check(text):
            assert list(itertools.chain(*in_pieces(trained_tokenizers[name], text))) == as_a_whole(
                trained_tokenizers[name], text
            )

        check()


@pytest.mark.parametrize("name", KINDS)
def test_long_texts_are_cut(trained_tokenizers, small, name):
    """Else the test above proves nothing."""
    pieces = in_pieces(trained_tokenizers[name], SAMPLE)
    assert len(pieces) > len(SAMPLE) // 500
    assert list(itertools.chain(*pieces)) == as_a_whole(trained_tokenizers[name], SAMPLE)


def test_a_model_that_weighs_the_whole_text_is_not_cut(small):
    tokenizer = Rust(unigram(split=False))
    assert len(in_pieces(tokenizer, SAMPLE[:4000])) == 1
    with pytest.raises(UserError, match=r"a text: .* characters, .* in pieces"):
        in_pieces(tokenizer, SAMPLE)


def test_special_tokens_of_a_long_prompt(trained_tokenizers, small):
    text = "ab <x> ab " * 100
    (ids,) = encoding.ids(trained_tokenizers["gpt2"], [text])
    assert (
        ids.tolist()
        == Tokenizer.from_str(trained_tokenizers["gpt2"].backend_tokenizer.to_str()).encode(text).ids
    )
    assert (ids == trained_tokenizers["gpt2"].backend_tokenizer.token_to_id("<x>")).sum() == 100


def test_documents_keep_their_order_and_their_ends(trained_tokenizers, small):
    lengths = [3, 700, 1, 90, 400, 5, 5]
    documents = [SAMPLE[start : start + length] for start, length in enumerate(lengths)]
    ids = [
        np.concatenate([*parts]).tolist()
        for parts in encoding.encoded(
            trained_tokenizers["gpt2"], [Document("x", [text]) for text in documents]
        )
    ]
    assert ids == [as_a_whole(trained_tokenizers["gpt2"], text) for text in documents]


# Hostile tokenizers: {name: (changes of a good tokenizer.json, text, words of the refusal)}
def replace(pattern, content, times=1):
    replacement = {"type": "Replace", "pattern": {"String": pattern}, "content": content}
    return {"normalizer": {"type": "Sequence", "normalizers": [replacement] * times}}


HOSTILE = {
    "an id near 2**32": ({"model": {"vocab": {"zzz": 2**32 - 5}}}, "a", "the id 4294967291; accepted"),
    "a normalizer that multiplies": (replace("a", "aaaaaaaa", 20), "aaaa", "more than 256 MiB of memory"),
    "a normalizer with a long text": (
        replace("a", "b" * 100_000),
        "a" * 50_000,
        "more than 256 MiB of memory",
    ),
    "an expression that backtracks": (
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "(a+)+$"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        "a" * 40 + "b",
        "cannot encode it",
    ),
    "no token for unknown text": (
        {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}},
        "ab",
        "unk_id",
    ),
}


def changed(tokenizer, changes):
    content = json.loads(tokenizer.to_str())
    for name, value in changes.items():
        if "vocab" in value and "type" not in value:
            content["model"]["vocab"] |= value["vocab"]
        else:
            content[name] = value
    return json.dumps(content)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.sampled(2)
def test_hostile_tokenizers_are_refused(trained_tokenizers, name, monkeypatch):
    changes, text, words = HOSTILE[name]
    monkeypatch.setattr(tokenizer_process, "MOST_MEMORY", 256 << 20)
    content = changed(trained_tokenizers["gpt2"].backend_tokenizer, changes)
    with pytest.raises(UserError) as caught, tokenizer_process.TokenizerProcess(content, "it") as process:
        process.ids([text], special=False, frame=False)
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_tokenizer_without_an_end_is_stopped(monkeypatch):
    tokens = [["a" * length, -1.0] for length in range(1, 2000)]
    model = {"type": "Unigram", "unk_id": 0, "vocab": tokens, "byte_fallback": False}
    monkeypatch.setattr(tokenizer_process, "MOST_SECONDS", 1)
    content = changed(Tokenizer(models.Unigram()), {"model": model})
    message = "it takes more than 1 s of processor time"
    with (
        tokenizer_process.TokenizerProcess(content, "it") as process,
        pytest.raises(UserError, match=message),
    ):
        process.ids(["a" * 300_000], special=False, frame=False)


def test_the_document_with_an_error_is_named(trained_tokenizers):
    tokenizer = Rust(Tokenizer(models.Unigram([("a", -1.0)], None)))
    with pytest.raises(UserError, match=r"one to two: .*unk_id"):
        [
            [*parts]
            for parts in encoding.encoded(tokenizer, [Document("one", ["a" * 99]), Document("two", "b" * 99)])
        ]


@pytest.mark.slow
def test_a_decoder_that_multiplies_is_refused(trained_tokenizers, monkeypatch):
    monkeypatch.setattr(tokenizer_process, "MOST_MEMORY", 256 << 20)
    rust = Tokenizer.from_str(trained_tokenizers["gpt2"].backend_tokenizer.to_str())
    rust.decoder = decoders.Sequence([decoders.Replace("a", "a" * 8)] * 20)
    with pytest.raises(UserError, match="256 MiB"):
        encoding.decoded(Rust(rust), [rust.encode("aaaa").ids])


def processes() -> set[int]:
    """The tokenizers' processes that this process has started."""
    file = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    children = map(int, file.read_text().split())
    return {
        child for child in children if b"tokenizer_process" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


def test_a_kept_process_serves_all_calls_and_ends_with_its_owner():
    tokenizer = Rust(bpe())
    kept = encoding.KeptProcess(tokenizer)

    def called(owner, text):
        with owner.running():
            encoding.ids(tokenizer, [text])
            return processes()

    first = called(kept, "a b")
    assert len(first) == 1 and called(kept, "b a") == first == processes()
    (number,) = first
    os.kill(number, signal.SIGKILL)
    os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
    second = called(kept, "a b")
    assert len(second) == 1 and second != first
    tokenizer.backend_tokenizer.add_tokens(["<new>"])
    third = called(kept, "<new>")
    assert len(third) == 1 and third != second
    with pytest.raises(KeyboardInterrupt), kept.running():
        raise KeyboardInterrupt
    assert not processes()
    assert len(called(kept, "a b")) == 1
    del kept
    assert not processes()
