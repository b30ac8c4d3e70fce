"""Added tokens: tokens that extend the vocabulary of tokenizer.json or the sentencepiece model.

tokenizer_config.json       added_tokens_decoder: {"151644": {"content": "<|im_start|>", ...}}
added_tokens.json           {"<|im_start|>": 151644}
both, special_tokens_map.json
                            additional_special_tokens, extra_special_tokens: tokens without ids
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

FILE = "added_tokens.json"
DECODER = "added_tokens_decoder"
LISTS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class Added:
    """A token added by ``file``.

    Attributes:
        number: The id; None if the file has none.
        flags: The matching options.
        is_explicit: Whether the file states the options.
    """

    content: str
    file: Path
    number: int | None
    flags: Mapping[str, bool]
    is_explicit: bool


def find(folder: Path, config: Mapping, config_file: Path, specials: Iterable[str]) -> list[Added]:
    """The added tokens of all files, sorted by id; tokens without ids come last.

    Args:
        specials: The tokens with roles, such as eos_token.

    Raises:
        UserError: A file is malformed, or files contradict each other.
    """
    listed = [*_listed(config, config_file)]
    special = {*specials, *(token.content for token in listed)}
    tokens: dict[str, Added] = {}
    contents: dict[int, str] = {}
    for token in [*_decoder(config, config_file), *_file(folder, special), *listed]:
        first = tokens.setdefault(token.content, token)
        if token.number is None:
            continue
        other = contents.setdefault(token.number, token.content)
        if other != token.content or first.number != token.number:
            raise UserError(
                f"{token.file} gives {token.content!r} the id {token.number}, which contradicts {first.file} "
                f"({other!r}: {tokens[other].number}); correct one of them"
            )
    return sorted(tokens.values(), key=lambda token: (token.number is None, token.number or 0))


def put_into(tokenizer, added: list[Added]) -> list[str]:
    """Add the tokens to a Rust tokenizer, or to PaddleNLP's sentencepiece class.

    Returns notes about new tokens without an id. Raises UserError if a token's id differs from the file's.
    """
    from tokenizers import AddedToken, Tokenizer

    is_rust = isinstance(tokenizer, Tokenizer)
    number_of = tokenizer.token_to_id if is_rust else functools.partial(_number_of, tokenizer)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()} if is_rust else set()
    new = [token.content for token in added if number_of(token.content) is None]
    _check_known(added, number_of)
    tokens = [
        AddedToken(token.content, **token.flags)
        for token in added
        if token.is_explicit or token.content not in known
    ]
    if is_rust:
        tokenizer.add_tokens(tokens)
    else:
        for token in tokens:
            tokenizer.add_tokens([token], special_tokens=token.special)
    return _check_new(added, new, number_of)


def _number_of(tokenizer, content: str) -> int | None:
    """Like Rust's ``token_to_id``; PaddleNLP's class returns ``unk_token``'s id for unknown tokens."""
    known = content in tokenizer.added_tokens_encoder or tokenizer.sp_model.piece_to_id(content)
    return tokenizer.convert_tokens_to_ids(content) if known or content == tokenizer.unk_token else None


def _check_known(added: list[Added], number_of) -> None:
    for token in added:
        known = number_of(token.content)
        if known is not None and token.number not in (None, known):
            raise UserError(
                f"{token.file} gives {token.content!r} the id {token.number}, but its id in the vocabulary "
                f"is {known}; correct one of them"
            )


def _check_new(added: list[Added], new: list[str], number_of) -> list[str]:
    notes = []
    for token in added:
        number = number_of(token.content)
        if token.number not in (None, number):
            raise UserError(
                f"{token.file} gives {token.content!r} the id {token.number}, but the next free id is "
                f"{number}; ids of added tokens must follow the vocabulary without gaps"
            )
        if token.number is None and token.content in new:
            notes.append(
                f"{token.content!r} of {token.file} is not in the vocabulary; it gets the id {number}"
            )
    return notes


def _decoder(config: Mapping, file: Path) -> Iterator[Added]:
    decoder = config.get(DECODER) or {}
    if not isinstance(decoder, dict):
        raise UserError(f"{file}: {DECODER} must be an object that maps ids to tokens")
    for number, token in decoder.items():
        if not number.isascii() or not number.isdecimal() or len(number) > 10:
            raise UserError(f"{file}: {DECODER} has the id {number!r:.40}, which is not a whole number")
        yield _token(token, file, int(number), special=False)


def _file(folder: Path, special: set[str]) -> Iterator[Added]:
    file = folder / FILE
    if not file.is_file():
        return
    for content, number in plain_json.mapping(file).items():
        if type(number) is not int or number < 0:
            raise UserError(f"{file}: {content!r} has the id {number!r:.40}, which is not a whole number")
        flags = dict.fromkeys(FLAGS, False) | {"special": content in special}
        yield Added(content, file, number, flags, is_explicit=False)


def _listed(config: Mapping, file: Path) -> Iterator[Added]:
    for name in LISTS:
        tokens = config.get(name) or []
        tokens = [*tokens.values()] if isinstance(tokens, dict) else tokens
        if not isinstance(tokens, list):
            raise UserError(f"{file}: {name} must be a list of tokens, not {tokens!r:.40}")
        for token in tokens:
            yield _token(token, file, None, special=True)


def _token(token: object, file: Path, number: int | None, special: bool) -> Added:
    """Parse a token: text, or an object with content and options."""
    options = token if isinstance(token, dict) else {}
    content = options.get("content", token)
    flags = {name: options.get(name, False) for name in FLAGS} | {"special": options.get("special", special)}
    if not isinstance(content, str) or not content or not all(type(flag) is bool for flag in flags.values()):
        raise UserError(
            f"{file}: {token!r:.80} is not a token; accepted: text, or an object with content and options"
        )
    return Added(content, file, number, flags, is_explicit=bool(options))
