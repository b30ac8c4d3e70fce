"""Tokenizers: loaded from a local directory, or a byte-level BPE trained on the text and cached."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models.presets import is_preset
from paddle_fused import strict_json

from . import chat_template
from .corpus import Corpus

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE_FILES = ("tokenizer.model", "sentencepiece.bpe.model")  # Hugging Face's and PaddleNLP's name
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")

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
BATCH = 64  # documents per tokenizer call


def tokenizer_for(model, source: Corpus | Path, vocab_size: int, cache: str | None = None):
    """The tokenizer that ModelArguments ``model`` selects.

    In this order: ``tokenizer_name_or_path``; the tokenizer next to the .bin + .idx pair ``source``, which
    made its ids; the tokenizer in the model's directory; for a preset, one of ``vocab_size`` tokens trained
    on the text ``source``.

    ``source`` is the result of ``llm_npu.data.find``. ValueError if the tokenizer has more tokens than
    ``vocab_size``, the size of the model's vocabulary, or if there is neither a tokenizer nor text.
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
    if len(tokenizer) > vocab_size:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, but the vocabulary of "
            f"{model.model_name_or_path} has {vocab_size}"
        )
    return tokenizer


def load_tokenizer(path: str | Path):
    """The tokenizer in a local directory: tokenizer.json, or sentencepiece's tokenizer.model.

    The directory's chat template is attached if there is one.

    ValueError for a missing directory (nothing is downloaded), a missing or corrupt file, and a tokenizer
    without an end-of-text token. Imports the library of models.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"the tokenizer {str(path)!r} is not a local directory, and nothing is downloaded")
    roles = _roles(folder)
    models = [folder / name for name in SENTENCEPIECE_FILES if (folder / name).is_file()]
    if (folder / TOKENIZER_FILE).is_file():
        file = {"tokenizer_file": str(folder / TOKENIZER_FILE)}
    elif models:
        file = {"vocab_file": str(models[0])}
        roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | roles
    else:
        raise UserError(f"{folder} contains neither {TOKENIZER_FILE} nor {SENTENCEPIECE_FILES[0]}")
    from llm_npu.models.library import tokenizers

    kind = tokenizers.Fast if "tokenizer_file" in file else tokenizers.SentencePiece
    try:
        tokenizer = kind(**file, **roles)
    except Exception as error:  # tokenizers and sentencepiece raise bare Exception and RuntimeError
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}") from error
    except BaseException as error:  # Rust panics, which do not derive from Exception
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}") from None
    if tokenizer.eos_token_id is None:
        raise UserError(f"{folder / CONFIG_FILE} names no eos_token of the vocabulary")
    if (template := chat_template.find(folder)) is not None:
        chat_template.attach(tokenizer, template)
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


def copy_tokenizer(source: str | Path, target: Path) -> None:
    """Copy only the files that ``load_tokenizer`` reads: ``source`` may contain a whole model."""
    target.mkdir()
    for name in (TOKENIZER_FILE, CONFIG_FILE, *SENTENCEPIECE_FILES, *chat_template.FILES):
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, target / name)


def encode(tokenizer, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """Token ids [tokens of the text], int64, of each text, without begin- and end-of-text tokens.

    Text that spells a special token ("</s>" in an HTML page) is plain text: it does not end a document.
    """
    texts = iter(texts)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    while batch := list(itertools.islice(texts, BATCH)):
        if backend is None:
            ids = tokenizer(batch, add_special_tokens=False)["input_ids"]
        else:
            backend.encode_special_tokens = True
            try:
                ids = [one.ids for one in backend.encode_batch_fast(batch, add_special_tokens=False)]
            finally:
                backend.encode_special_tokens = False
        yield from (np.asarray(one, dtype=np.int64) for one in ids)


def fingerprint(tokenizer) -> str:
    """A hash of everything that determines the ids of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str().encode() if backend else Path(tokenizer.vocab_file).read_bytes()
    return hashlib.sha256(content + str(tokenizer.eos_token_id).encode()).hexdigest()


def _roles(folder: Path) -> dict[str, str]:
    """The special tokens that tokenizer_config.json names, as strings."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        return {}
    try:
        config = plain_json.mapping(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    # A token is a string, or an object with its content and matching options.
    found = {role: config.get(role) for role in ROLES}
    found = {
        role: token.get("content") if isinstance(token, dict) else token for role, token in found.items()
    }
    for role, token in found.items():
        if token is not None and not isinstance(token, str):
            raise UserError(f"{file}: {role} is {token!r:.40}, but must be text")
    return {role: token for role, token in found.items() if token}


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
    for text in corpus.documents():
        texts.append(text[: characters - size])
        size += len(texts[-1])
        if size >= characters:
            break
    return texts
