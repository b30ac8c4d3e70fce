"""Text, conversations or .bin + .idx -> samples with a bounded number of tokens.

    source = find(run.data)                                  # a Corpus, or the prefix of a .bin + .idx pair
    tokenizer = tokenizer_for(run.model, source, config.vocab_size, run.data.data_cache)
    data = load(run.data, source, tokenizer, config.vocab_size)
    train = ShuffledSamples(data.train, max_steps * global_batch, run.training.seed, global_batch)
    train[i] -> {"input_ids": int64 [T], "labels": int64 [T], ...}   labels[t] is the token after input_ids[t]

``train[i]`` is a pure function of the seed and i. A sampler that yields i = 0, 1, 2, ... without shuffling
(PaddleNLP's DistributedBatchSampler with ``shuffle=False``) and starts at the number of consumed samples
therefore reproduces the batches of an uninterrupted run. ``llm_npu.data.collate`` makes batches of samples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from llm_npu.config import DataArguments
from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError

from . import answers, pairs
from .datasets import Datasets, packed
from .indexed import HELD_OUT, open_indexed, parts, with_suffix, write_indexed
from .order import FirstSamples, Samples, ShuffledSamples
from .packing import DocumentPieces, PackedSamples, TokenStream
from .rows import Rows, check_ids
from .split import PARTS, boundaries, refuse_short, without_named
from .text import conversations
from .text.corpus import Corpus, corpus, standard_library
from .text.encoding import encoded
from .text.preferences import Preferences
from .text.tokenizer import fingerprint, vocabulary_size

__all__ = ["Datasets", "FirstSamples", "PackedSamples", "Rows", "Samples", "ShuffledSamples"]
__all__ += ["documents", "find", "first_prompt", "load"]

# Reading this many takes a second or two. Larger inputs have their ids checked on use only.
CHECKED_TOKENS = 1 << 28


def find(data: DataArguments) -> Corpus | Path:
    """Resolve ``input_dir``: text or the prefix of a .bin + .idx pair, with stage sft conversations, with dpo
    preference pairs.

    ValueError if it is none of these.
    """
    if data.stage == "sft":
        return conversations.find(data.input_dir)
    if data.stage == "dpo":
        return Preferences.find(data.input_dir)
    if data.input_dir is None:
        return standard_library()
    path = Path(data.input_dir).expanduser()
    if path.suffix in (".bin", ".idx"):
        return path.parent / path.stem
    if with_suffix(path, ".idx").is_file():
        return path
    prefixes = sorted(file.parent / file.stem for file in path.glob("*.idx")) if path.is_dir() else []
    prefixes = [each for each in prefixes if not _is_held_out(each, prefixes)]
    if len(prefixes) > 1:
        raise UserError(f"{path} contains {len(prefixes)} .idx files; name one, for example {prefixes[0]}")
    return prefixes[0] if prefixes else corpus(path)


def load(
    data: DataArguments,
    source: Corpus | Path,
    tokenizer,
    vocab_size: int,
    need_valid: bool = True,
    need_test: bool = False,
) -> Datasets:
    """Tokenise ``source`` (from ``find``), memory-map it, split it, and cut or pack it into samples.

    ``vocab_size`` is the model's. Tokenised text is cached. Imports the library of models. With stage sft or
    dpo, ``tokenizer`` gets the chat template of ``data``, or the default one if it has none. ValueError for
    input that is empty, unreadable or corrupt, for token ids of ``vocab_size`` or more, and for a needed part
    with too few tokens for one sample.
    """
    needed = (True, need_valid, need_test)
    if isinstance(source, conversations.Conversations):
        return answers.load(data, source, tokenizer, vocab_size, needed)
    if isinstance(source, Preferences):
        return pairs.load(data, source, tokenizer, vocab_size, needed)
    found = source.parts() if isinstance(source, Corpus) else parts(source)
    train, *held_out = (_stream(part, data, tokenizer, vocab_size) for part in found)
    split, kept = without_named(data.split, needed, held_out)
    limits = boundaries(train.ends, split, data.max_seq_length, kept, name=_name(source))
    streams = [(train, *limit) for limit in itertools.pairwise(limits)]
    for number, stream in enumerate(held_out, start=1):
        if stream is not None:
            streams[number] = (stream, 0, len(stream))
            if needed[number] and len(stream) <= data.max_seq_length:
                refuse_short(number, f"{len(stream)} tokens", data.max_seq_length, _name(found[number]))
    made = [(*stream, data.max_seq_length, vocab_size) for stream in streams]
    notes = source.notes if isinstance(source, Corpus) else ()
    if data.packing == "stream":
        samples = _streams([PackedSamples(*part, apart=data.reset_attention_mask) for part in made], needed)
    else:
        samples = packed(data, [DocumentPieces(*part) for part in made], "documents and pieces of documents")
    return dataclasses.replace(samples, notes=(*samples.notes, *notes))


def _streams(parts: Sequence[PackedSamples], needed: tuple[bool, bool, bool]) -> Datasets:
    for samples, need, name in zip(parts, needed, PARTS, strict=True):
        if need and not len(samples):
            raise UserError(
                f"the {name} part has no label: with --reset_attention_mask the last token of a document has "
                "none, and all documents have one token"
            )
    left_out = sum(samples.left_out for samples in parts)
    notes = [f"{left_out:,} samples without a label are left out: their documents have one token each"]
    return Datasets(*parts, notes=tuple(notes) if left_out else ())


def documents(source: Corpus, tokenizer) -> Iterator[Iterator[np.ndarray]]:
    """Token ids of every document of ``source`` in parts, int64, the last an end-of-text token."""
    end = np.array([tokenizer.eos_token_id], dtype=np.int64)
    for document in encoded(tokenizer, source.streams()):
        yield itertools.chain(document, [end])


def first_prompt(source: Corpus | Path, tokenizer) -> str | None:
    """A short prompt of ``source``, conversations or preference pairs; None for other text."""
    if isinstance(source, conversations.Conversations):
        return answers.first_question(source, tokenizer)
    return pairs.first_prompt(source, tokenizer) if isinstance(source, Preferences) else None


def _stream(
    part: Corpus | Path | None, data: DataArguments, tokenizer, vocab_size: int
) -> TokenStream | None:
    if part is None:
        return None
    tokens = open_indexed(_tokenised(part, tokenizer, data.data_cache) if isinstance(part, Corpus) else part)
    if tokens.tokens.size <= CHECKED_TOKENS:
        check_ids(tokens.tokens, vocab_size)
    return TokenStream(tokens, tokenizer.eos_token_id)


def _is_held_out(prefix: Path, prefixes: list[Path]) -> bool:
    """Whether it is the validation or test part of another pair."""
    names = [prefix.name.removesuffix(suffix) for suffix in HELD_OUT]
    return any(name != prefix.name and prefix.parent / name in prefixes for name in names)


def _tokenised(source: Corpus, tokenizer, cache: str | None) -> Path:
    key = hashlib.sha256((source.fingerprint() + fingerprint(tokenizer)).encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        try:
            write_indexed(folder / "tokens", documents(source, tokenizer), vocabulary_size(tokenizer))
        except ValueError as error:
            raise UserError(f"{source.name}: {error}") from error

    return cached(f"tokens-{key}", build, cache) / "tokens"


def _name(source: Corpus | Path) -> str:
    return source.name if isinstance(source, Corpus) else f"{source}.bin"
