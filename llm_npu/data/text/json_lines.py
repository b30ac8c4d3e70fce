"""Files of JSON lines, each an object: the training lines, and those held out in dev.jsonl."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

from .corpus import Corpus, decoded, opened
from .fields import printable

PARTS = ("train.json", "dev.json")  # PaddleNLP's names; also one object per line


@dataclass(frozen=True)
class JsonLines(Corpus):
    """``stage`` reads such files; ``content`` is the name of what a line holds, in the plural."""

    stage: ClassVar[str]
    content: ClassVar[str]

    @classmethod
    def find(cls, input_dir: str):
        """A .jsonl file, or the .jsonl files of a folder (and its train.json, dev.json).

        ValueError if there are none.
        """
        path = Path(input_dir).expanduser()
        if path.is_dir():
            files = sorted(
                {*path.glob("*.jsonl"), *(path / name for name in PARTS if (path / name).is_file())}
            )
            if not files:
                raise UserError(
                    f"{path} contains no .jsonl file; --stage {cls.stage} reads {cls.content} from .jsonl"
                )
            return cls(str(path), path, tuple(files))
        if not path.exists():
            raise UserError(f"{path} does not exist; --input_dir takes a .jsonl file or a folder of them")
        if path.suffix not in (".jsonl", ".json"):
            raise UserError(f"{path} has the suffix {path.suffix!r}, but --stage {cls.stage} reads .jsonl")
        return cls(str(path), path.parent, (path,))

    def records(self) -> Iterator[tuple[str, dict]]:
        """(file and line, object) of every line that is not blank.

        ValueError, with file and line, for a line that is no JSON object.
        """
        for file in self.files:
            with opened(file) as stream:
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        where = f"{file}, line {number}"
                        yield where, self._record(line, where)

    def parts(self):
        """The training lines, and those held out in dev.jsonl or dev.json (None without such a file)."""
        held_out = tuple(file for file in self.files if file.stem == "dev")
        if not held_out:
            return self, None
        rest = tuple(file for file in self.files if file not in held_out)
        if not rest:
            raise UserError(f"{self.name} contains only {held_out[0].name}, and no training data")
        return dataclasses.replace(self, files=rest), dataclasses.replace(self, files=held_out)

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
