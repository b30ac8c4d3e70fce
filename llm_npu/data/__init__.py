"""Text, .jsonl or .bin + .idx -> packed samples of fixed length.

    source = find(run.data)                                  # a Corpus, or the prefix of a .bin + .idx pair
    tokenizer = tokenizer_for(run.model, source, config.vocab_size, run.data.data_cache)
    data = load(run.data, source, tokenizer, config.vocab_size)
    train = data.train.shuffled(num_samples=max_steps * global_batch, seed=run.training.seed)
    train[i] -> {"input_ids": int64 [T], "labels": int64 [T]}    labels[t] is the token after input_ids[t]

``train[i]`` is a pure function of the seed and i: a sampler that walks i = 0, 1, 2, ... without shuffling
(PaddleNLP's DistributedBatchSampler with ``shuffle=False``) and starts at the number of consumed samples sees
the batches of a run that was never interrupted.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache import cached
from ..config import DataArguments
from ..corpus import Corpus, corpus, standard_library
from ..tokenizer import encode, fingerprint
from .indexed import open_indexed, with_suffix, write_indexed
from .packing import PackedSamples, ShuffledSamples, TokenStream, check_ids
from .split import boundaries

__all__ = ["Datasets", "PackedSamples", "ShuffledSamples", "documents", "find", "load"]

# A second or two of reading; above it, ids are checked only as they are used.
CHECKED_TOKENS = 1 << 28


@dataclass(frozen=True)
class Datasets:
    """The three parts of the data; a part that is not needed may be empty (length 0)."""

    train: PackedSamples
    valid: PackedSamples
    test: PackedSamples


def find(data: DataArguments) -> Corpus | Path:
    """What ``input_dir`` names: text, or the prefix of a .bin + .idx pair. ValueError if neither."""
    if data.input_dir is None:
        return standard_library()
    path = Path(data.input_dir).expanduser()
    if path.suffix in (".bin", ".idx"):
        return path.parent / path.stem
    if with_suffix(path, ".idx").is_file():
        return path
    prefixes = sorted(file.parent / file.stem for file in path.glob("*.idx")) if path.is_dir() else []
    if len(prefixes) > 1:
        raise ValueError(f"{path} holds {len(prefixes)} .idx files; name one, for example {prefixes[0]}")
    return prefixes[0] if prefixes else corpus(path)


def load(
    data: DataArguments,
    source: Corpus | Path,
    tokenizer,
    vocab_size: int,
    need_valid: bool = True,
    need_test: bool = False,
) -> Datasets:
    """The parts of ``source`` (from ``find``), tokenised, memory-mapped and cut into samples.

    ``vocab_size`` is the model's. Tokenised text is kept in the cache. Imports paddlenlp.
    ValueError for input that is empty, unreadable or corrupt, for token ids of ``vocab_size`` or more, and
    for a needed part with too few tokens for one sample.
    """
    tokens = open_indexed(
        _tokenised(source, tokenizer, data.data_cache) if isinstance(source, Corpus) else source
    )
    if tokens.tokens.size <= CHECKED_TOKENS:
        check_ids(tokens.tokens, vocab_size)
    stream = TokenStream(tokens, tokenizer.eos_token_id)
    limits = boundaries(
        stream.ends, data.split, data.max_seq_length, (True, need_valid, need_test), name=_name(source)
    )
    return Datasets(
        *(
            PackedSamples(stream, start, stop, data.max_seq_length, vocab_size)
            for start, stop in itertools.pairwise(limits)
        )
    )


def documents(source: Corpus, tokenizer) -> Iterator[np.ndarray]:
    """Token ids of every document of ``source``, int64, each with an end-of-text token after it."""
    end = np.array([tokenizer.eos_token_id], dtype=np.int64)
    for ids in encode(tokenizer, source.documents()):
        yield np.concatenate([ids, end])


def _tokenised(source: Corpus, tokenizer, cache: str | None) -> Path:
    key = hashlib.sha256((source.fingerprint() + fingerprint(tokenizer)).encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        try:
            write_indexed(folder / "tokens", documents(source, tokenizer), len(tokenizer))
        except ValueError as error:
            raise ValueError(f"{source.name}: {error}") from error

    return cached(f"tokens-{key}", build, cache) / "tokens"


def _name(source: Corpus | Path) -> str:
    return source.name if isinstance(source, Corpus) else f"{source}.bin"
