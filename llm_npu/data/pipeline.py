"""Files -> the samples of a run. The steps, top to bottom: find, tokenizer, encode, split, pack, order.

    source = find(run.data)
    tokenizer = tokenizer_for(run.model, source, config.vocab_size, run.data.data_cache)
    data = load(run.data, source, tokenizer, config.vocab_size)          # encode, split, pack
    train = ShuffledSamples(data.train, max_steps * global_batch, run.training.seed, global_batch)
    train[i] -> {"input_ids": int64 [T], "labels": int64 [T], ...}   labels[t] is the token after input_ids[t]

``train[i]`` is a pure function of the seed and i. A sampler that yields i = 0, 1, 2, ... without shuffling
(PaddleNLP's DistributedBatchSampler with ``shuffle=False``), starting at the number of consumed samples,
therefore reproduces the batches of an uninterrupted run. ``llm_npu.data.collate`` makes batches of samples.

A source is a `Corpus` (text, or its subclasses for conversations and preference pairs) or a Path, the prefix
of a .bin + .idx pair. The splits, called parts in the code, are training, validation and test, numbered 0 to
2.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn, Protocol

import numpy as np

from llm_npu.config import DataArguments, ModelArguments
from llm_npu.config.formats import split_weights
from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError
from llm_npu.models.presets import is_preset

from . import answers, indexed, pairs
from .indexed import PARTS
from .packing import IGNORED, PACKING_PLANS, DocumentPieces, PackedSamples, Rows, Sequences, TokenStream
from .text import chat_template
from .text.conversations import Conversations
from .text.corpus import Corpus, corpus, standard_library
from .text.encoding import encoded
from .text.preferences import Preferences
from .text.records import JsonLines, unused_notes
from .text.tokenizer import fingerprint, load_tokenizer, tokenizer_of_pair, trained_tokenizer, vocabulary_size

Needed = tuple[bool, bool, bool]  # whether the run reads each split

# Reading this many takes one or two seconds. The ids of larger inputs are checked only on use.
CHECKED_TOKENS = 1 << 28
DIGESTED_SAMPLES = 256  # takes a fraction of a second to read


# --- find ---


def find(data: DataArguments) -> Corpus | Path:
    """Resolve ``input_dir``: stage sft reads conversations, dpo preference pairs, pt text or .bin + .idx.

    Raises UserError if ``input_dir`` contains no such data.
    """
    if data.stage == "sft":
        return Conversations.find(data.input_dir)
    if data.stage == "dpo":
        return Preferences.find(data.input_dir)
    if data.input_dir is None:
        return standard_library()
    path = Path(data.input_dir).expanduser()
    if path.suffix in (".bin", ".idx"):
        return path.parent / path.stem
    if indexed.with_suffix(path, ".idx").is_file():
        return path
    prefixes = sorted(file.parent / file.stem for file in path.glob("*.idx")) if path.is_dir() else []
    prefixes = [prefix for prefix in prefixes if not indexed.is_held_out(prefix, prefixes)]
    if len(prefixes) > 1:
        raise UserError(f"{path} contains {len(prefixes)} .idx files; name one, for example {prefixes[0]}")
    return prefixes[0] if prefixes else corpus(path)


# --- tokenizer ---


def tokenizer_for(model: ModelArguments, source: Corpus | Path, vocab_size: int, cache: str | None = None):
    """Select the tokenizer for ``model``.

    The first available of: ``tokenizer_name_or_path``; the tokenizer next to the .bin + .idx pair ``source``,
    which produced its ids; the tokenizer in the model's directory; for a preset, a tokenizer with
    ``vocab_size`` tokens trained on the text ``source``.

    Raises:
        UserError: The tokenizer has a token id >= ``vocab_size``, the model's vocabulary size; or there is
            neither a tokenizer nor text.
    """
    if model.tokenizer_name_or_path:
        tokenizer = load_tokenizer(model.tokenizer_name_or_path)
    elif isinstance(source, Path) and tokenizer_of_pair(source).is_dir():
        tokenizer = load_tokenizer(tokenizer_of_pair(source))
    elif not is_preset(model.model_name_or_path):
        tokenizer = load_tokenizer(model.model_name_or_path)
    elif isinstance(source, Corpus):
        tokenizer = load_tokenizer(trained_tokenizer(source, vocab_size, cache))
    else:
        raise UserError(
            f"{source}.bin contains token ids, but {tokenizer_of_pair(source)} does not exist; specify the "
            "tokenizer that created them with --tokenizer_name_or_path"
        )
    if (size := vocabulary_size(tokenizer)) > vocab_size:
        raise UserError(
            f"the tokenizer has ids up to {size - 1}, but the vocabulary of {model.model_name_or_path} has "
            f"{vocab_size} tokens"
        )
    return tokenizer


# --- load: encode, split and pack ---


class Samples(Protocol):
    """The packed samples of a split."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]: ...

    def labelled(self, index: int) -> int:
        """The number of labels of sample ``index`` that are not -100."""
        ...


@dataclass(frozen=True)
class Datasets:
    """The three splits of the data; an unneeded split may be empty (length 0).

    ``notes`` report changes to the data that users may not expect.
    """

    train: Samples
    valid: Samples
    test: Samples
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """A SHA-256 of the split sizes and of up to `DIGESTED_SAMPLES` evenly spaced samples of each split.

        Samples are hashed after packing, independently of their source file or cache.
        """
        digest = hashlib.sha256()
        for part in (self.train, self.valid, self.test):
            count = len(part)
            digest.update(f"{count} samples\n".encode())
            for number in np.linspace(0, count - 1, min(count, DIGESTED_SAMPLES), dtype=np.int64):
                for name, values in sorted(part[int(number)].items()):
                    digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
                    digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def load(
    data: DataArguments,
    source: Corpus | Path,
    tokenizer,
    vocab_size: int,
    need_valid: bool = True,
    need_test: bool = False,
) -> Datasets:
    """Encode ``source`` (from `find`), split the token ids, and cut or pack them into samples.

    Encoded text is cached. With stage sft or dpo, ``tokenizer`` gets the chat template of ``data``, or the
    default template if the tokenizer has none. Imports the model library.

    Args:
        vocab_size: The size of the model's vocabulary.

    Raises:
        UserError: The input is empty, unreadable or corrupt; a token id is not below ``vocab_size``; or a
            needed split has too few tokens for one sample.
    """
    needed = (True, need_valid, need_test)
    if isinstance(source, JsonLines):
        return _load_records(data, source, tokenizer, vocab_size, needed)
    sources = source.parts() if isinstance(source, Corpus) else indexed.parts(source)
    train, *held_out = (
        None if part is None else _encode(part, data, tokenizer, vocab_size) for part in sources
    )
    bounds = _split_stream(train, held_out, sources, data, needed)
    samples = _pack_streams(data, [(*part, data.max_seq_length, vocab_size) for part in bounds], needed)
    return samples if isinstance(source, Path) else _with_notes(samples, source.notes)


def _load_records(
    data: DataArguments, source: JsonLines, tokenizer, vocab_size: int, needed: Needed
) -> Datasets:
    """`load` for conversations and preference pairs, which are not cut."""
    task = answers if isinstance(source, Conversations) else pairs
    template_notes = attach_template(data, tokenizer)
    parts = _split_records(task, source, tokenizer, data, needed)
    sequences, name, notes = task.sequences(source, parts, tokenizer, data.max_seq_length, vocab_size, needed)
    unused = unused_notes({folder for _, folder, _, _ in parts})
    samples = _pack(data, sequences, name, task.ROWS)
    return _with_notes(samples, (*source.notes, *template_notes, *notes, *unused))


def attach_template(data: DataArguments, tokenizer) -> list[str]:
    """Set the tokenizer's chat template from ``data``, or to the default if it has none; return notes."""
    if data.chat_template is not None:
        chat_template.attach(tokenizer, chat_template.read(data.chat_template))
    if chat_template.source_of(tokenizer) is not None:
        return []
    chat_template.attach(tokenizer, chat_template.DEFAULT)
    return ["the tokenizer has no chat template: turns are formatted as User: and Assistant:"]


def first_prompt(source: Corpus | Path, tokenizer) -> str | None:
    """A short prompt of ``source``, conversations or preference pairs; None for other text."""
    if isinstance(source, Conversations):
        return answers.first_question(source, tokenizer)
    return pairs.first_prompt(source, tokenizer) if isinstance(source, Preferences) else None


# --- encode ---


def _encode(source: Corpus | Path, data: DataArguments, tokenizer, vocab_size: int) -> TokenStream:
    """The memory-mapped token stream of one split."""
    prefix = _encode_text(source, tokenizer, data.data_cache) if isinstance(source, Corpus) else source
    tokens = indexed.open_indexed(prefix)
    if tokens.tokens.size <= CHECKED_TOKENS:
        indexed.check_ids(tokens.tokens, vocab_size)
    return TokenStream(tokens, tokenizer.eos_token_id)


def _encode_text(source: Corpus, tokenizer, cache: str | None) -> Path:
    """The prefix of the .bin + .idx pair in the cache."""
    key = hashlib.sha256((source.fingerprint() + fingerprint(tokenizer)).encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        try:
            size = vocabulary_size(tokenizer)
            indexed.write_indexed(folder / "tokens", documents(source, tokenizer), size)
        except ValueError as error:
            raise UserError(f"{source.name}: {error}") from error

    return cached(f"tokens-{key}", build, cache) / "tokens"


def documents(source: Corpus, tokenizer) -> Iterator[Iterator[np.ndarray]]:
    """Chunks of token ids, int64, of each document of ``source``; the last id is the end-of-text token."""
    end = np.array([tokenizer.eos_token_id], dtype=np.int64)
    for document in encoded(tokenizer, source.streams()):
        yield itertools.chain(document, [end])


# --- split ---


def _split_stream(
    train: TokenStream,
    held_out: Sequence[TokenStream | None],
    sources: Sequence[Corpus | Path | None],
    data: DataArguments,
    needed: Needed,
) -> list[tuple[TokenStream, int, int]]:
    """The stream, start and stop of each split.

    ``held_out``: the streams of validation and test files, which are used whole. Splits without such files
    are split off the training stream.
    """
    split, needed_of_train = _without_held_out(data.split, needed, held_out)
    limits = boundaries(train.ends, split, data.max_seq_length, needed_of_train, _name(sources[0]))
    parts = [(train, *limit) for limit in itertools.pairwise(limits)]
    for part, stream in enumerate(held_out, start=1):
        if stream is not None:
            parts[part] = (stream, 0, len(stream))
            if needed[part] and len(stream) <= data.max_seq_length:
                _refuse_short(part, f"{len(stream)} tokens", data.max_seq_length, _name(sources[part]))
    return parts


def boundaries(ends: np.ndarray, split: str, length: int, needed: Needed, name: str) -> list[int]:
    """The four positions in the stream that delimit the three splits.

    Whole documents are assigned to splits by PaddleNLP's rule. If there are too few to give every
    ``needed`` split one sample, the stream is cut by the weights instead, inside documents.

    Args:
        ends: The document ends in the stream, int64 [documents].
        split: The weights of the splits, such as "949,50,1".
        length: Number of tokens in a sample.
        name: The name of the data in messages.

    Raises:
        UserError: The stream is too short even when cut inside documents.
    """
    from llm_npu.models.library import adapter

    # With very few documents, PaddleNLP's rounding can fall below 0.
    counts = [max(0, count) for count in adapter.documents_of_parts(split, len(ends))]
    by_document = [int(ends[count - 1]) if count else 0 for count in counts]
    if not _too_short(by_document, length, needed):
        return by_document
    total = int(ends[-1])
    by_token = _by_weights(total, split)
    for part in _too_short(by_token, length, needed):
        tokens = by_token[part + 1] - by_token[part]
        _refuse_short(part, f"{tokens} of {total} tokens (--split {split})", length, name)
    return by_token


def _too_short(limits: Sequence[int], length: int, needed: Needed) -> list[int]:
    return [part for part in range(3) if needed[part] and limits[part + 1] - limits[part] <= length]


def _refuse_short(part: int, tokens: str, length: int, name: str) -> NoReturn:
    other = ", or --do_eval false" if part == 1 else ""
    raise UserError(
        f"the {PARTS[part]} split of {name} has {tokens}, but one sample needs {length + 1}; use "
        f"more text, a smaller --max_seq_length or another --split{other}"
    )


def _split_records(
    task: ModuleType, source: JsonLines, tokenizer, data: DataArguments, needed: Needed
) -> list[tuple[JsonLines, Path, int, int]]:
    """Encode and split: files, cache folder of their ids, start and stop of each split.

    Validation and test files are used whole; the records of other files are split by count.
    """
    train, *held_out = source.parts()
    folder = task.encode(train, tokenizer, data.data_cache)
    split, needed_of_train = _without_held_out(data.split, needed, held_out)
    total = task.count(folder)
    limits = _by_weights(total, split)
    for part in range(3):
        if needed_of_train[part] and limits[part] == limits[part + 1]:
            raise UserError(
                f"the {PARTS[part]} split of {source.name} is empty: it gets 0 of {total} {source.content} "
                f"(--split {split}); "
                "use more data, or another --split" + (", or --do_eval false" if part == 1 else "")
            )
    parts = [(train, folder, *limit) for limit in itertools.pairwise(limits)]
    for part, files in enumerate(held_out, start=1):
        if files is not None:
            folder = task.encode(files, tokenizer, data.data_cache)
            parts[part] = (files, folder, 0, task.count(folder))
    return parts


def _by_weights(total: int, split: str) -> list[int]:
    """The four limits that divide ``total`` tokens or records by the weights of ``split``."""
    weights = split_weights(split)
    return [0, *(round(total * float(sum(weights[: part + 1]))) for part in range(2)), total]


def _without_held_out(split: str, needed: Needed, held_out: Sequence[object | None]) -> tuple[str, Needed]:
    """Adjust ``split`` and ``needed`` if there are ``held_out`` validation or test files.

    With validation files, nothing is held out from the training source; with test files, no test split is.
    """
    has_valid, has_test = (part is not None for part in held_out)
    train, *weights = split_weights(split)
    if has_valid:
        weights = [0.0, 0.0]
    elif has_test:
        weights[1] = 0.0
    needed = needed[0], needed[1] and not has_valid, needed[2] and not has_test
    return (",".join(map(str, (train, *weights))) if has_valid or has_test else split), needed


def _name(source: Corpus | Path) -> str:
    return source.name if isinstance(source, Corpus) else f"{source}.bin"


# --- pack ---


def _pack_streams(data: DataArguments, parts: Sequence[tuple], needed: Needed) -> Datasets:
    """``parts``: the arguments of `PackedSamples` and `DocumentPieces`."""
    if data.packing != "stream":
        sequences = [DocumentPieces(*part) for part in parts]
        return _pack(data, sequences, "documents and pieces of documents", Rows)
    samples = [PackedSamples(*part, separate_documents=data.reset_attention_mask) for part in parts]
    for part, is_needed, name in zip(samples, needed, PARTS, strict=True):
        if is_needed and not len(part):
            raise UserError(
                f"the {name} split has no label: with --reset_attention_mask the last token of a document "
                "has none, and each document has a single token"
            )
    dropped = sum(part.dropped for part in samples)
    notes = [f"{dropped:,} samples without a label are dropped: each of their documents has a single token"]
    return Datasets(*samples, notes=tuple(notes) if dropped else ())


def _pack(data: DataArguments, parts: Sequence[Sequences], name: str, kind: type[Rows]) -> Datasets:
    """Pack whole sequences into samples with ``data.packing``; ``name`` describes them in the note."""
    plan, length = PACKING_PLANS[data.packing], data.max_seq_length
    rows = [kind(part, plan(part.lengths.tolist(), length)) for part in parts]
    train, count = rows[0], len(parts[0].lengths)
    fill = train.tokens / max(1, len(train) * length)
    note = f"{count:,} {name} packed into {len(train):,} samples, filling {fill:.0%} of {length:,} tokens"
    return Datasets(*rows, notes=(note,))


def _with_notes(samples: Datasets, notes: Sequence[str]) -> Datasets:
    return Datasets(samples.train, samples.valid, samples.test, (*samples.notes, *notes))


# --- order ---
#
# A sample is weighted by its number of labels: with n labels, and a mean of m labels over the samples of an
# optimizer step, its ``loss_weight`` is n / m. The mean over a step of (batch loss, a mean over its labels) x
# (mean weight of its samples) then equals the mean over all labels of the step, for any division of the step
# into batches.


class ShuffledSamples:
    """Item i is samples[p[i mod n]], n = len(samples), where p is the permutation of epoch i div n.

    p is a pure function of seed and epoch, so item i depends on the seed and i only: a run that resumes at i
    sees the same samples as an uninterrupted one. ``per_step`` items form an optimizer step.
    """

    def __init__(self, samples: Samples, num_samples: int, seed: int, per_step: int = 1):
        if not len(samples):
            raise UserError("there are no samples to train on")
        self._samples = samples
        self._num_samples = num_samples
        self._per_step = per_step
        # Two, because the samples of a step may span two epochs.
        self._order = functools.lru_cache(maxsize=2)(lambda epoch: permutation(seed, epoch, len(samples)))
        self._mean_labels = functools.lru_cache(maxsize=1)(self._mean_labels_of_step)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        number = self._number(index)
        weight = self._samples.labelled(number) / self._mean_labels(index // self._per_step)
        return self._samples[number] | {"loss_weight": weight}

    def _number(self, index: int) -> int:
        epoch, position = divmod(index, len(self._samples))
        return int(self._order(epoch)[position])

    def _mean_labels_of_step(self, step: int) -> float:
        items = range(step * self._per_step, (step + 1) * self._per_step)
        labels = sum(self._samples.labelled(self._number(item)) for item in items)
        if not labels:
            raise UserError(f"step {step + 1} has no labels: all tokens of its samples are ignored")
        return labels / self._per_step


class FirstSamples:
    """The first ``count`` samples in order, weighted over all of them; used for evaluation.

    Padded to ``padded`` items with copies of the first sample, without labels and with weight 0.
    """

    def __init__(self, samples: Samples, count: int, padded: int = 0):
        self._samples = samples
        self._count = min(count, len(samples))
        self._padded = max(self._count, padded)
        labels = sum(samples.labelled(index) for index in range(self._count))
        if self._count and not labels:
            raise UserError("the evaluation has no labels: all tokens of its samples are ignored")
        self._mean_labels = labels / max(1, self._count)

    def __len__(self) -> int:
        return self._padded

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self._padded:
            raise IndexError(f"sample {index} of {self._padded}")
        if index >= self._count:
            filler = self._samples[0]
            labels = np.full_like(filler["labels"], IGNORED)
            return filler | {"labels": labels, "loss_weight": 0.0}
        return self._samples[index] | {"loss_weight": self._samples.labelled(index) / self._mean_labels}


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The permutation of ``size`` samples for an epoch, int64 [size]; a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)
