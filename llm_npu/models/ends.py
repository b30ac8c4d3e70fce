"""The end-of-text tokens of a model; a model can have several.

Importing it imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

GENERATION_FILE = "generation_config.json"
FIELD = "eos_token_id"
Ends = int | list[int] | None


def of_folder(folder: Path, config: Mapping[str, object], file: Path) -> Ends:
    """The tokens of ``config`` (from ``file``) and of generation_config.json. Raises UserError if invalid."""
    tokens = _listed(config, file)
    if (folder / GENERATION_FILE).is_file():
        tokens += _listed(plain_json.mapping(folder / GENERATION_FILE), folder / GENERATION_FILE)
    return _joined(tokens) if tokens else None


def with_tokenizers(ends: Ends, own: int) -> Ends:
    """Add the tokenizer's token ``own`` to a model's list; a single token is replaced by ``own``."""
    return _joined([*ends, own]) if isinstance(ends, (list, tuple)) else own


def _joined(numbers: list[int]) -> Ends:
    once = list(dict.fromkeys(numbers))
    return once[0] if len(once) == 1 else once


def _listed(fields: Mapping[str, object], file: Path) -> list[int]:
    ends = fields.get(FIELD)
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(type(number) is int and number >= 0 for number in listed):
        raise UserError(f"{file}: {FIELD} is {ends!r:.80}, but must be a token id, or a list of them")
    return listed
