"""Records of JSON lines files, with tracking of unused keys.

    for where, record in JsonLines.find(input_dir).records():
        fields = Fields(record, where)
        fields.get("system")    # marks the key as read
        fields.unread()         # names of the keys that were not read

Each key is read, rejected, or counted as unused. A key without content (null, "", [] or {}) counts as absent:
column-oriented data sets write every key in every line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json, plain_text
from paddle_fused import strict_json

from .corpus import Corpus, Document, decoded, files_in, lines, of_folder

MEDIA = ("image", "images", "image_info", "video", "videos", "video_info", "audio", "audios")
LISTED_NAMES = 10  # in a message
_LONGEST = 40  # characters of a name in a message
_FILE = "unused.json"


@dataclass(frozen=True)
class JsonLines(Corpus):
    """JSON lines files with one object per line.

    Attributes:
        stage: The value of ``--stage`` that reads the files.
        content: The name of the records, in plural form.
    """

    stage: ClassVar[str]
    content: ClassVar[str]

    @classmethod
    def find(cls, input_dir: str):
        """Find a .jsonl file, or the .jsonl files of a folder, in alphabetical order.

        A .json file, including one with an object per line, counts only if its name assigns it to a split, as
        PaddleNLP's train.json. Raises UserError if there is no file.
        """
        path = Path(input_dir).expanduser()
        if path.is_dir():
            none = f"{path} contains no .jsonl file; --stage {cls.stage} reads {cls.content} from .jsonl"
            folder = files_in(path, (".jsonl",), suffix_of_parts=".json", order=lambda name: name)
            return of_folder(cls, folder, none)
        if not path.exists():
            raise UserError(f"{path} does not exist; --input_dir takes a .jsonl file or a folder of them")
        if path.suffix.lower() not in (".jsonl", ".json"):
            raise UserError(f"{path} has the suffix {path.suffix!r}, but --stage {cls.stage} reads .jsonl")
        return cls(str(path), path.parent, (path,))

    def streams(self) -> Iterator[Document]:
        return (Document(self.name, [text]) for text in self.documents())

    def records(self) -> Iterator[tuple[str, dict]]:
        """Yield (file and line, object) of every non-blank line.

        Raises UserError, with file and line, for a line that is not a JSON object.
        """
        for file in self.files:
            for where, line in lines(file):
                yield where, self._record(line, where)

    def _record(self, line: bytes, where: str) -> dict:
        try:
            record = plain_json.loads(decoded(line, "utf-8-sig", where), pairs=_unique)
        except json.JSONDecodeError as error:
            record = self.content.removesuffix("s")
            raise UserError(f"{where} is not valid JSON: {error.msg}; write one {record} per line") from error
        except UserError:
            raise
        except ValueError as error:  # a number with more digits than Python accepts
            raise UserError(f"{where} cannot be read: {error}") from error
        if not isinstance(record, dict):
            raise UserError(f"{where} must be an object, not a {type(record).__name__}")
        return record


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object with these keys. Raises JSONDecodeError for a repeated key (json keeps the last)."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in record if names.count(name) > 1)
        raise json.JSONDecodeError(f"the key {printable(repeated)} appears twice", "", 0)
    return record


class Fields:
    """The keys of the JSON object ``record`` at ``where`` (file and line). Raises UserError for media."""

    def __init__(self, record: Mapping[str, object], where: str):
        self._record, self._read, self._dropped = record, set(), []
        self.where = where
        refuse_media(record, where)

    def __contains__(self, name: str) -> bool:
        return holds(self._record.get(name))

    def get(self, name: str, default: object = None) -> object:
        """The value of ``name``, which is marked as read; ``default`` if it is absent."""
        self._read.add(name)
        return self._record.get(name, default)

    def drop(self, name: str, value: object) -> None:
        """Mark ``value``, a part of a read key, as unread."""
        self._dropped += [name] * holds(value)

    def unread(self) -> list[str]:
        """The names of non-empty keys that have not been read."""
        names = [name for name, value in self._record.items() if holds(value) and name not in self._read]
        return names + self._dropped

    def __str__(self) -> str:
        return listing(self._record) or "nothing"


class Unused:
    """Counts of unused keys.

    Attributes:
        unread: Keys that no layout reads.
        omitted: Keys and messages that the chat template leaves out.
    """

    def __init__(self):
        self.unread: Counter[str] = Counter()
        self.omitted: Counter[str] = Counter()

    def save(self, folder: Path) -> None:
        (folder / _FILE).write_text(strict_json.dumps(vars(self)))

    def add_saved(self, folder: Path) -> None:
        """Add the counts that `save` wrote. Raises UserError if the file is damaged."""
        saved = plain_json.mapping(folder / _FILE)
        for name, counter in vars(self).items():
            counts = saved.get(name)
            if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
                raise UserError(f"{folder / _FILE} is damaged; delete its folder to rebuild it")
            counter.update(counts)

    def notes(self) -> list[str]:
        """At most two lines for the user."""
        lines = {
            "unused keys of the data": self.unread,
            "not used by the chat template": self.omitted,
        }
        return [f"{line}: {_counted(counter)}" for line, counter in lines.items() if counter]


def unused_notes(folders: Iterable[Path]) -> list[str]:
    """Notes about the counts that `Unused.save` wrote to ``folders``."""
    unused = Unused()
    for folder in folders:
        unused.add_saved(folder)
    return unused.notes()


def holds(value: object) -> bool:
    """Whether a JSON value is not null, "", [] or {}."""
    return value is not None and value != "" and value != [] and value != {}


def refuse_media(record: Mapping[str, object], where: str) -> None:
    """Raise UserError for a record or message with images, videos or sound."""
    for name in MEDIA:
        if holds(record.get(name)):
            raise UserError(f"{where} has {name}, but only text is supported; remove that field, or the line")


def listing(names: Iterable[str]) -> str:
    """``a, b``: names from a file, as one line of bounded length."""
    names = list(names)
    more = f", and {len(names) - LISTED_NAMES:,} more" if len(names) > LISTED_NAMES else ""
    return ", ".join(map(printable, names[:LISTED_NAMES])) + more


def printable(name: str) -> str:
    """A name from a file, shortened and without line breaks."""
    return plain_text.printable(name, longest=_LONGEST)


def _counted(counter: Counter[str]) -> str:
    most = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    more = f", and {len(most) - LISTED_NAMES:,} more" if len(most) > LISTED_NAMES else ""
    return ", ".join(f"{printable(name)} ({count:,} times)" for name, count in most[:LISTED_NAMES]) + more
