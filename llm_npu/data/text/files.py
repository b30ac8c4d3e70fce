"""The files of a data folder: those that are read, those that are held out by their names, and the skipped.

Folders are read with all folders in them and all linked ones, each once. The names directly in the data
folder decide the parts: ``valid.jsonl``, ``my-corpus.test.txt``, or folders ``train/`` and ``test/``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.errors import UserError

# The words in names, for the training, validation and test part.
WORDS = (
    {"train", "training"},
    {"valid", "validation", "val", "dev", "eval", "evaluation"},
    {"test", "testing"},
)
SOURCES = (".py", ".md")  # their names say nothing about parts: test.py is a program
KINDS = 5  # skipped suffixes that are named


@dataclass(frozen=True)
class Folder:
    """``files`` below ``root``, and the number of skipped ones of each kind."""

    root: Path
    files: tuple[Path, ...]
    skipped: Counter[str]

    def parts(self) -> tuple[tuple[Path, ...], ...]:
        """The files of the training, validation and test part; those that name no part are for training."""
        tops = {file.relative_to(self.root).parts[0] for file in self.files}
        trained = any(_part(self.root / top) == 0 for top in tops)
        found: list[list[Path]] = [[], [], []]
        for file in self.files:
            top = self.root / file.relative_to(self.root).parts[0]
            is_folder = top != file
            found[(_part(top) or 0) if trained or not is_folder else 0].append(file)
        return tuple(map(tuple, found))


def by_hash(relative: Path) -> bytes:
    """An order that is random, but stable."""
    return hashlib.sha256(os.fsencode(relative)).digest()


def in_folder(
    root: Path,
    suffixes: tuple[str, ...],
    left_out: frozenset[str] = frozenset(),
    if_named: str = "",
    order: Callable[[Path], object] = by_hash,
) -> Folder:
    """The files below ``root`` with one of ``suffixes``, in small or capital letters.

    Those with the suffix ``if_named`` count only if they are named as a part. Hidden files and folders, and
    those named in ``left_out``, are skipped. UserError for a folder that cannot be read.
    """
    files, skipped = [], Counter()
    for entry in _entries(root, left_out, skipped):
        suffix = Path(entry.name).suffix.lower()
        if suffix not in suffixes and not (suffix == if_named and _is_part(Path(entry.name).stem)):
            skipped[suffix or "without a suffix"] += 1
        elif entry.is_file() or not os.path.exists(entry.path):  # a broken link is refused where it is read
            files.append(Path(entry.path))
        else:
            skipped["no regular files"] += 1
    files.sort(key=lambda file: order(file.relative_to(root)))
    return Folder(root, tuple(files), skipped)


def described(found: Folder) -> str:
    """``skipped in texts: 12 (.csv 10, hidden 2)``."""
    kinds = [f"{kind} {number:,}" for kind, number in found.skipped.most_common(KINDS)]
    if len(found.skipped) > KINDS:
        kinds.append("others")
    return f"skipped in {shown(found.root)}: {found.skipped.total():,} ({', '.join(kinds)})"


def assigned(found: Folder) -> list[str]:
    """Which files are held out by their names."""
    notes = []
    for part, files in zip(("validation", "test"), found.parts()[1:], strict=True):
        names = sorted(shown(file.relative_to(found.root)) for file in files)
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            notes.append(f"the {part} part is {names[0]}{more}, by name")
    return notes


def shown(path: Path) -> str:
    """A path for messages; bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def _is_part(name: str) -> bool:
    return any(name.lower() in words for words in WORDS)


def _part(path: Path) -> int | None:
    """The part that a name directly in the data folder assigns: 0, 1 or 2."""
    name = path.name.lower()
    if Path(name).suffix in SOURCES:
        return None
    words = set(re.findall(r"[a-z]+", Path(name).stem)) if Path(name).suffix else {name}
    return next((part for part, known in enumerate(WORDS) if known & words), None)


def _entries(root: Path, left_out: frozenset[str], skipped: Counter[str]) -> Iterator[os.DirEntry]:
    """Everything but folders, folder by folder; those that are linked come last."""
    seen = set()
    waiting, linked = deque([str(root)]), deque[str]()
    while waiting or linked:
        folder = (waiting or linked).popleft()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                skipped["linked folders that are read already"] += 1
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                if entry.name.startswith("."):
                    skipped["hidden"] += 1
                elif not entry.is_dir():
                    yield entry
                elif entry.name not in left_out:
                    (linked if entry.is_symlink() else waiting).append(entry.path)
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error
