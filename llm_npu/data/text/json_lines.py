"""Files of JSON lines, each an object: the training lines, and those held out in dev.jsonl or test.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

from . import files
from .corpus import Corpus, Document, decoded, lines, of_folder
from .fields import printable


@dataclass(frozen=True)
class JsonLines(Corpus):
    """``stage`` reads such files; ``content`` is the name of what a line holds, in the plural."""

    stage: ClassVar[str]
    content: ClassVar[str]

    @classmethod
    def find(cls, input_dir: str):
        """A .jsonl file, or the .jsonl files of a folder, in the order of their names.

        A .json file, also with an object per line, counts if it is named as a part, such as PaddleNLP's
        train.json. UserError if there are none.
        """
        path = Path(input_dir).expanduser()
        if path.is_dir():
            none = f"{path} contains no .jsonl file; --stage {cls.stage} reads {cls.content} from .jsonl"
            found = files.in_folder(path, (".jsonl",), if_named=".json", order=lambda name: name)
            return of_folder(cls, found, none)
        if not path.exists():
            raise UserError(f"{path} does not exist; --input_dir takes a .jsonl file or a folder of them")
        if path.suffix.lower() not in (".jsonl", ".json"):
            raise UserError(f"{path} has the suffix {path.suffix!r}, but --stage {cls.stage} reads .jsonl")
        return cls(str(path), path.parent, (path,))

    def streams(self) -> Iterator[Document]:
        return (Document(self.name, [text]) for text in self.documents())

    def records(self) -> Iterator[tuple[str, dict]]:
        """(file and line, object) of every line that is not blank.

        ValueError, with file and line, for a line that is no JSON object.
        """
        for file in self.files:
            for where, line in lines(file):
                yield where, self._record(line, where)

    def _record(self, line: bytes, where: str) -> dict:
        try:
            record = plain_json.loads(decoded(line, "utf-8-sig", where), pairs=_once)
        except json.JSONDecodeError as error:
            one = self.content.removesuffix("s")
            raise UserError(f"{where} is not valid JSON: {error.msg}; write one {one} per line") from error
        except UserError:
            raise
        except ValueError as error:  # a number of more digits than Python takes
            raise UserError(f"{where} cannot be read: {error}") from error
        if not isinstance(record, dict):
            raise UserError(f"{where} must be an object, not a {type(record).__name__}")
        return record


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object with these keys. JSONDecodeError for a key that is there twice: json keeps the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise json.JSONDecodeError(f"the key {printable(twice)} is there twice", "", 0)
    return found
