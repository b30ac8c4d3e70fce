"""The keys of a record: each is read, refused, or counted among those that nothing reads.

    fields = Fields(record, where)
    fields.get("system")    # now read
    fields.unread()         # the names of the others

A key that holds nothing (null, "", [] or {}) counts as absent: data sets with columns write all keys in every
line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json, plain_text
from paddle_fused import strict_json

MEDIA = ("image", "images", "image_info", "video", "videos", "video_info", "audio", "audios")
SHOWN = 10  # names in a message
_LONGEST = 40  # characters of a name in a message
_FILE = "unused.json"


class Fields:
    """The keys of the JSON object ``record``, which stands at ``where``. UserError for images and sound."""

    def __init__(self, record: Mapping[str, object], where: str):
        self._record, self._read, self._dropped = record, set(), []
        self.where = where
        refuse_media(record, where)

    def __contains__(self, name: str) -> bool:
        return holds(self._record.get(name))

    def get(self, name: str, default: object = None) -> object:
        """The value of ``name``, which is read now; ``default`` without one."""
        self._read.add(name)
        return self._record.get(name, default)

    def drop(self, name: str, value: object) -> None:
        """Count a part of a read key, ``value``, as unread, as its layout defines."""
        self._dropped += [name] * holds(value)

    def unread(self) -> list[str]:
        """The names of what holds something and has not been read."""
        names = [name for name, value in self._record.items() if holds(value) and name not in self._read]
        return names + self._dropped

    def __str__(self) -> str:
        return shown(self._record) or "nothing"


class Unused:
    """How often keys of records are not used: ``unread`` by any reader, ``omitted`` by the chat template."""

    def __init__(self):
        self.unread: Counter[str] = Counter()
        self.omitted: Counter[str] = Counter()

    def save(self, folder: Path) -> None:
        (folder / _FILE).write_text(strict_json.dumps(vars(self)))

    def add_saved(self, folder: Path) -> None:
        """Add what `save` wrote. UserError if the file is damaged."""
        found = plain_json.mapping(folder / _FILE)
        for name, counter in vars(self).items():
            counts = found.get(name)
            if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
                raise UserError(f"{folder / _FILE} is damaged; delete its folder to rebuild it")
            counter.update(counts)

    def notes(self) -> list[str]:
        """At most two lines, for the user."""
        lines = {
            "these keys of the data are not used": self.unread,
            "the chat template leaves out": self.omitted,
        }
        return [f"{line}: {_counted(counter)}" for line, counter in lines.items() if counter]


def holds(value: object) -> bool:
    """Whether a JSON value is anything but null, "", [] and {}."""
    return value is not None and value != "" and value != [] and value != {}


def refuse_media(record: Mapping[str, object], where: str) -> None:
    """UserError for a record or message with images, videos or sound."""
    for name in MEDIA:
        if holds(record.get(name)):
            raise UserError(f"{where} has {name}, but only text is trained; remove them, or the line")


def shown(names: Iterable[str]) -> str:
    """``a, b``: names from a file, as one line of bounded length."""
    names = list(names)
    more = f", and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(printable, names[:SHOWN])) + more


def printable(name: str) -> str:
    """A name from a file, as a part of one line."""
    return plain_text.printable(name, longest=_LONGEST)


def _counted(counter: Counter[str]) -> str:
    most = sorted(counter.items(), key=lambda each: (-each[1], each[0]))
    more = f", and {len(most) - SHOWN:,} more" if len(most) > SHOWN else ""
    return ", ".join(f"{printable(name)} ({count:,} times)" for name, count in most[:SHOWN]) + more
