"""Loads tokenizers from a local folder, or trains and caches a byte-level BPE on the text.

The files of a folder in Hugging Face's and PaddleNLP's layout:

tokenizer.json              the tokenizer; its truncation and padding settings are ignored
tokenizer.model, sentencepiece.bpe.model
                            sentencepiece model, if there is no tokenizer.json
tokenizer_config.json       roles (eos_token, ...), added tokens, the chat template
special_tokens_map.json     roles and added tokens that tokenizer_config.json lacks
added_tokens.json           further tokens (``added_tokens``)
chat_template.json, .jinja  the chat template (``chat_template``)
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.core.untrusted.git_lfs import refuse_pointer
from llm_npu.core.untrusted.tokenizer_process import TokenizerProcess
from paddle_fused import strict_json

from . import added_tokens, chat_template, encoding
from .corpus import Corpus

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
SENTENCEPIECE_FILES = ("tokenizer.model", "sentencepiece.bpe.model")  # Hugging Face's and PaddleNLP's name
FILES = (
    TOKENIZER_FILE,
    CONFIG_FILE,
    SPECIAL_FILE,
    added_tokens.FILE,
    *SENTENCEPIECE_FILES,
    *chat_template.FILES,
)
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
SENTENCEPIECE_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

# Their ids match LlamaConfig's defaults: 0 for padding, 1 and 2 for begin and end of text.
SPECIAL_TOKENS = ("<|unknown|>", "<|begin_of_text|>", "<|end_of_text|>")
TRAINED_ROLES = {
    "unk_token": SPECIAL_TOKENS[0],
    "pad_token": SPECIAL_TOKENS[0],
    "bos_token": SPECIAL_TOKENS[1],
    "eos_token": SPECIAL_TOKENS[2],
}
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # a byte-level vocabulary contains all bytes

# More text slows training down and hardly changes the vocabulary.
TRAINING_CHARACTERS = 32 << 20


def load_tokenizer(path: str | Path):
    """The tokenizer in a local directory: tokenizer.json, or sentencepiece's tokenizer.model.

    The directory's chat template is attached if there is one. The attribute ``notes`` lists ignored settings
    in the files, and tokens that get new ids. Imports the model library.

    Raises:
        UserError: The directory is missing (nothing is downloaded), a file is missing, corrupt or hostile,
            files contradict each other, or the tokenizer has no end-of-text token.
    """
    folder = Path(path).expanduser()
    config, special = _mapping(folder / CONFIG_FILE), _mapping(folder / SPECIAL_FILE)
    roles = _roles(special, folder / SPECIAL_FILE) | _roles(config, folder / CONFIG_FILE)
    settings = {name: special[name] for name in added_tokens.LISTS if name in special} | config
    added = added_tokens.find(folder, settings, folder / CONFIG_FILE, roles.values())
    file = tokenizer_file(folder)
    if file.name == TOKENIZER_FILE:
        tokenizer = _fast(file, roles, added, config)
    else:
        tokenizer = _sentencepiece(file, SENTENCEPIECE_ROLES | roles, added)
    if tokenizer.eos_token_id is None:
        raise UserError(f"{folder / CONFIG_FILE} has no eos_token in the vocabulary")
    if (template := chat_template.find(folder)) is not None:
        chat_template.attach(tokenizer, template)
    return tokenizer


def tokenizer_file(folder: Path) -> Path:
    """The tokenizer's file in ``folder``. Raises UserError if there is none; nothing is downloaded."""
    if not folder.is_dir():
        raise UserError(f"the tokenizer {str(folder)!r} is not a local directory, and nothing is downloaded")
    files = [folder / name for name in (TOKENIZER_FILE, *SENTENCEPIECE_FILES)]
    for file in files:
        refuse_pointer(file)
        if file.is_file():
            return file
    raise UserError(f"{folder} contains neither {TOKENIZER_FILE} nor {SENTENCEPIECE_FILES[0]}")


def copy_tokenizer(source: str | Path, target: Path) -> None:
    """Copy only the files that ``load_tokenizer`` reads: ``source`` may contain a whole model."""
    target.mkdir()
    for name in FILES:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, target / name)


def trained_tokenizer(corpus: Corpus, vocab_size: int, cache: str | None = None) -> Path:
    """The directory (in the cache) of the byte-level BPE with ``vocab_size`` tokens trained on ``corpus``.

    Every byte is a token, so there is no unknown text, and decoding restores the text. Raises UserError for a
    corpus without text, and for a vocabulary that is too small for all bytes.
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


def tokenizer_of_pair(prefix: Path) -> Path:
    """The directory of the tokenizer that made the pair ``prefix``.bin + .idx: ``prefix``-tokenizer."""
    return prefix.parent / f"{prefix.name}-tokenizer"


def vocabulary_size(tokenizer) -> int:
    """The largest id plus 1, which can exceed the number of tokens because ids can have gaps."""
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


def _fast(file: Path, roles: dict[str, str], added: list[added_tokens.Added], config: Mapping):
    # A hostile file crashes the subprocess, not this process.
    TokenizerProcess(file, f"the tokenizer in {file.parent}").close()
    from tokenizers import Tokenizer

    from llm_npu.models.library import tokenizers

    with _readable(file.parent):
        rust = Tokenizer.from_file(str(file))
        ids = rust.get_vocab(with_added_tokens=False).values()
        if len(set(ids)) < len(ids):
            # The tokenizers library would choose another one of these tokens each time it loads the file.
            raise UserError(f"{file} has several tokens with the same id; accepted: one id per token")
        notes = _without_training_settings(rust, file)
        notes += added_tokens.put_into(rust, added)
        notes += [
            f"{name} {token!r} of {file.parent} is not in the vocabulary; it gets a new id"
            for name, token in roles.items()
            if rust.token_to_id(token) is None
        ]
        _put_begin(rust, roles, config)
        tokenizer = tokenizers.Fast(tokenizer_object=rust, **roles)
    tokenizer.notes = tuple(notes)
    return tokenizer


def _sentencepiece(file: Path, roles: dict[str, str], added: list[added_tokens.Added]):
    from llm_npu.models.library import tokenizers

    with _readable(file.parent):
        tokenizer, notes = tokenizers.sentencepiece(
            str(file), roles, lambda tokenizer: added_tokens.put_into(tokenizer, added)
        )
    tokenizer.notes = tuple(notes)
    return tokenizer


def _without_training_settings(rust, file: Path) -> list[str]:
    """Remove settings that would change training text; return notes about them."""
    notes = []
    if rust.truncation is not None:
        notes.append(f"{file} truncates texts to {rust.truncation['max_length']} tokens; this is ignored")
        rust.no_truncation()
    if rust.padding is not None:
        notes.append(f"{file} pads texts; this is ignored")
        rust.no_padding()
    if getattr(rust.model, "dropout", None):
        notes.append(f"{file} drops merges at random (dropout {rust.model.dropout:g}); this is ignored")
        rust.model.dropout = None
    return notes


def _put_begin(rust, roles: Mapping[str, str], config: Mapping) -> None:
    """Add a begin-of-text token to prompts if a Llama tokenizer's configuration sets it.

    The class in transformers does this regardless of tokenizer.json.
    """
    from tokenizers.processors import Sequence, TemplateProcessing

    begin, kind = roles.get("bos_token"), str(config.get("tokenizer_class"))
    number = begin and rust.token_to_id(begin)
    if config.get("add_bos_token") is not True or number is None or "Llama" not in kind:
        return
    if rust.num_special_tokens_to_add(is_pair=False) == 0:
        template = TemplateProcessing(single=[begin, "$A"], special_tokens=[(begin, number)])
        rust.post_processor = Sequence([step for step in (rust.post_processor, template) if step is not None])


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Convert any error of a library to a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # tokenizers and sentencepiece raise bare Exception and RuntimeError
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}") from error
    except BaseException as error:  # Rust panics, which do not derive from Exception
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}") from None


def _mapping(file: Path) -> dict:
    if not file.is_file():
        return {}
    try:
        return plain_json.mapping(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def _roles(config: Mapping, file: Path) -> dict[str, str]:
    """The special tokens in a file, as strings."""
    # A token is a string, or an object with its content and matching options.
    tokens = {role: config.get(role) for role in ROLES}
    tokens = {
        role: token.get("content") if isinstance(token, dict) else token for role, token in tokens.items()
    }
    for role, token in tokens.items():
        if token is not None and not isinstance(token, str):
            raise UserError(f"{file}: {role} is {token!r:.40}, but must be text")
    return {role: token for role, token in tokens.items() if token}


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
        for text in encoding.cut(document.chunks):
            texts.append(text[: characters - size])
            size += len(texts[-1])
            if size >= characters:
                return texts
    return texts
