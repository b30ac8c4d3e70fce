"""Tokenizers: loaded from a local directory, or a byte-level BPE trained on the text and cached."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError
from llm_npu.models.presets import is_preset
from paddle_fused import strict_json

from . import encoding
from .corpus import Corpus
from .tokenizer_folder import CONFIG_FILE, TOKENIZER_FILE, load_tokenizer

# Their ids match LlamaConfig's defaults: 0 for padding, 1 and 2 for begin and end of text.
SPECIAL_TOKENS = ("<|unknown|>", "<|begin_of_text|>", "<|end_of_text|>")
TRAINED_ROLES = {
    "unk_token": SPECIAL_TOKENS[0],
    "pad_token": SPECIAL_TOKENS[0],
    "bos_token": SPECIAL_TOKENS[1],
    "eos_token": SPECIAL_TOKENS[2],
}
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # a byte-level vocabulary contains every byte

# More text slows training down and hardly changes the vocabulary.
TRAINING_CHARACTERS = 32 << 20


def tokenizer_for(model, source: Corpus | Path, vocab_size: int, cache: str | None = None):
    """The tokenizer that ModelArguments ``model`` selects.

    In this order: ``tokenizer_name_or_path``; the tokenizer next to the .bin + .idx pair ``source``, which
    made its ids; the tokenizer in the model's directory; for a preset, one of ``vocab_size`` tokens trained
    on the text ``source``.

    ``source`` is the result of ``llm_npu.data.find``. UserError if the tokenizer has ids of ``vocab_size``,
    the size of the model's vocabulary, or more, and if there is neither a tokenizer nor text.
    """
    if model.tokenizer_name_or_path:
        tokenizer = load_tokenizer(model.tokenizer_name_or_path)
    elif isinstance(source, Path) and tokenizer_beside(source).is_dir():
        tokenizer = load_tokenizer(tokenizer_beside(source))
    elif not is_preset(model.model_name_or_path):
        tokenizer = load_tokenizer(model.model_name_or_path)
    elif isinstance(source, Corpus):
        tokenizer = load_tokenizer(trained_tokenizer(source, vocab_size, cache))
    else:
        raise UserError(
            f"{source}.bin contains token ids, but {tokenizer_beside(source)} does not exist; name the "
            "tokenizer that made them with --tokenizer_name_or_path"
        )
    if (size := vocabulary_size(tokenizer)) > vocab_size:
        raise UserError(
            f"the tokenizer has ids up to {size - 1}, but the vocabulary of {model.model_name_or_path} has "
            f"{vocab_size} tokens"
        )
    return tokenizer


def trained_tokenizer(corpus: Corpus, vocab_size: int, cache: str | None = None) -> Path:
    """The directory (in the cache) of the byte-level BPE with ``vocab_size`` tokens trained on ``corpus``.

    It has no unknown text: every byte is a token, and decoding restores the text. ValueError for a corpus
    without text and for a vocabulary too small for all bytes.
    """
    import tokenizers

    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"a byte-level tokenizer needs {SMALLEST_VOCABULARY} tokens, but the requested vocabulary has "
            f"{vocab_size}"
        )
    settings = f"{SPECIAL_TOKENS} {vocab_size} {TRAINING_CHARACTERS} {tokenizers.__version__}"
    key = hashlib.sha256(f"{settings} {corpus.fingerprint()}".encode()).hexdigest()[:32]
    return cached(f"tokenizer-{key}", lambda folder: _train(corpus, vocab_size, folder), cache)


def tokenizer_beside(prefix: Path) -> Path:
    """The directory of the tokenizer that made the pair ``prefix``.bin + .idx: ``prefix``-tokenizer."""
    return prefix.parent / f"{prefix.name}-tokenizer"


def vocabulary_size(tokenizer) -> int:
    """The largest id plus 1; ids may have gaps, so that there may be fewer tokens."""
    rust = encoding.backend(tokenizer)
    if rust is not None:
        return max(rust.get_vocab(with_added_tokens=True).values()) + 1
    return max([tokenizer.vocab_size, *(number + 1 for number in tokenizer.added_tokens_decoder)])


def fingerprint(tokenizer) -> str:
    """A hash of everything that determines the ids of a text."""
    rust = encoding.backend(tokenizer)
    if rust is not None:
        content = rust.to_str().encode()
    else:
        added = sorted(tokenizer.added_tokens_encoder.items())
        content = Path(tokenizer.vocab_file).read_bytes() + (str(added).encode() if added else b"")
    return hashlib.sha256(content + str(tokenizer.eos_token_id).encode()).hexdigest()


def _train(corpus: Corpus, vocab_size: int, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = _first(corpus, TRAINING_CHARACTERS)
    if not texts:
        raise UserError(f"{corpus.name} contains no text")
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    (folder / CONFIG_FILE).write_text(strict_json.dumps(TRAINED_ROLES), encoding="utf-8")


def _first(corpus: Corpus, characters: int) -> list[str]:
    texts, size = [], 0
    for document in corpus.streams():
        for text in encoding.cut(document.parts):
            texts.append(text[: characters - size])
            size += len(texts[-1])
            if size >= characters:
                return texts
    return texts
