"""Text documents: the files of a folder, the lines of a .jsonl, or the source of the standard library.

Folders are read recursively, including linked folders, each only once. Names directly in the data folder
assign files to splits: ``valid.jsonl``, ``my-corpus.test.txt``, or folders ``train/`` and ``test/``.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
import sysconfig
import tokenize
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.core.untrusted.git_lfs import refuse_pointer

SUFFIXES = (".txt", ".py", ".md", ".jsonl")
# Enough for about 1000 default steps; tokenized in a few seconds on one core.
STANDARD_LIBRARY_BYTES = 4 << 20
BLOCK = 1 << 20  # bytes or characters read at once
LONGEST_LINE = 128 << 20  # bytes; parsed as JSON, a line needs up to nine times as much memory
# Words in names that assign files to the training, validation and test split.
WORDS = (
    {"train", "training"},
    {"valid", "validation", "val", "dev", "eval", "evaluation"},
    {"test", "testing"},
)
SOURCES = (".py", ".md")  # not assigned by name: test.py is a program
REPORTED_KINDS = 5  # of skipped files


class Document(NamedTuple):
    """A text in chunks of any length, and its location (file, or file and line) for messages."""

    where: str
    chunks: Iterable[str]


@dataclass(frozen=True)
class Corpus:
    """Text files in a fixed order.

    Attributes:
        name: The name in messages.
        root: The base of relative paths.
        held_out: The validation and test files, as assigned by file names.
        notes: Notes about skipped files.
    """

    name: str
    root: Path
    files: tuple[Path, ...]
    held_out: tuple[tuple[Path, ...], ...] = ((), ())
    notes: tuple[str, ...] = ()

    def documents(self) -> Iterator[str]:
        """Yield the text of every non-empty document. Raises UserError as `streams`."""
        return ("".join(document.chunks) for document in self.streams())

    def streams(self) -> Iterator[Document]:
        """Yield every non-empty document: one per file, or one per line of a .jsonl.

        Raises UserError for a file that cannot be read or is not valid text, at the latest when its chunks
        are read.
        """
        for file in self.files:
            yield from _jsonl(file) if file.suffix.lower() == ".jsonl" else _text(file)

    def parts(self) -> list[Corpus | None]:
        """The training, validation and test split; None for a held-out split without files."""
        held_out = [dataclasses.replace(self, files=files, held_out=((), ())) for files in self.held_out]
        train = dataclasses.replace(self, held_out=((), ()))
        return [train, *(part if part.files else None for part in held_out)]

    def fingerprint(self) -> str:
        """A hash of the names, order and content of the files."""
        digest = hashlib.sha256()
        for file in (*self.files, *(file for part in self.held_out for file in part)):
            digest.update(os.fsencode(file.relative_to(self.root)) + b"\0")
            with opened(file) as stream:
                while block := stream.read(BLOCK):
                    digest.update(block)
                digest.update(stream.tell().to_bytes(8, "little"))
        return digest.hexdigest()


def standard_library() -> Corpus:
    """About 4 MB of source code of the running Python's standard library, without tests and packages."""
    root = Path(sysconfig.get_path("stdlib"))
    excluded = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
    files, size = [], 0
    for file in files_in(root, (".py",), excluded).files:
        size += file.stat().st_size
        if size > STANDARD_LIBRARY_BYTES:
            break
        files.append(file)
    if not files:
        raise UserError(f"this Python has no source files in {root}; pass text with --input_dir")
    return Corpus("the standard library", root, tuple(files))


def corpus(path: Path) -> Corpus:
    """The text in a file or folder. Raises UserError if there is none.

    The files of a folder are ordered by the hash of their relative path: random but stable, so ``--split``
    holds out a random choice of files. Hidden files are skipped.
    """
    if path.is_dir():
        none = f"{path} contains no {', '.join(SUFFIXES)} and no .bin + .idx file"
        return of_folder(Corpus, files_in(path, SUFFIXES), none)
    if not path.exists():
        raise UserError(f"{path} does not exist; --input_dir takes a file or folder of text, or .bin + .idx")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} has the suffix {path.suffix!r}; accepted for text: {', '.join(SUFFIXES)}")
    return Corpus(str(path), path.parent, (path,))


def of_folder(kind: type[Corpus], folder: Folder, none: str):
    """The corpus of class ``kind`` in a folder. Raises UserError(``none``) if there is no file."""
    path, skipped = folder.root, [folder.skipped_note()] if folder.skipped else []
    if not folder.files:
        raise UserError("; ".join([none, *skipped]))
    parts = folder.parts()
    if not parts[0]:
        raise UserError(
            f"{path} contains only {shown(folder.files[0].relative_to(path))}, and no training data"
        )
    return kind(str(path), path, parts[0], parts[1:], (*skipped, *folder.held_out_notes()))


@dataclass(frozen=True)
class Folder:
    """The ``files`` below ``root``, and the number of ``skipped`` files by kind."""

    root: Path
    files: tuple[Path, ...]
    skipped: Counter[str]

    def parts(self) -> tuple[tuple[Path, ...], ...]:
        """The files of the training, validation and test split; unassigned files are for training.

        Folder names assign files only if one of them is a name of the training split.
        """
        tops = {file.relative_to(self.root).parts[0] for file in self.files}
        has_train = any(_part(self.root / top) == 0 for top in tops)
        parts: list[list[Path]] = [[], [], []]
        for file in self.files:
            top = self.root / file.relative_to(self.root).parts[0]
            is_folder = top != file
            parts[(_part(top) or 0) if has_train or not is_folder else 0].append(file)
        return tuple(map(tuple, parts))

    def skipped_note(self) -> str:
        """``skipped in texts: 12 (.csv 10, hidden 2)``."""
        kinds = [f"{kind} {number:,}" for kind, number in self.skipped.most_common(REPORTED_KINDS)]
        if len(self.skipped) > REPORTED_KINDS:
            kinds.append("others")
        return f"skipped in {shown(self.root)}: {self.skipped.total():,} ({', '.join(kinds)})"

    def held_out_notes(self) -> list[str]:
        """Notes about files that are held out because of their names."""
        notes = []
        for part, files in zip(("validation", "test"), self.parts()[1:], strict=True):
            names = sorted(shown(file.relative_to(self.root)) for file in files)
            if names:
                more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
                notes.append(f"the {part} split is {names[0]}{more}, selected by name")
        return notes


def by_hash(relative: Path) -> bytes:
    """A sort key: random, but stable."""
    return hashlib.sha256(os.fsencode(relative)).digest()


def files_in(
    root: Path,
    suffixes: tuple[str, ...],
    excluded: frozenset[str] = frozenset(),
    suffix_of_parts: str = "",
    order: Callable[[Path], object] = by_hash,
) -> Folder:
    """The files below ``root`` with one of ``suffixes`` (case-insensitive), sorted by ``order``.

    Files with the suffix ``suffix_of_parts`` count only if their name assigns them to a split. Hidden files
    and folders, and folders named in ``excluded``, are skipped. Raises UserError for a folder that cannot be
    read.
    """
    files, skipped = [], Counter()
    for entry in _entries(root, excluded, skipped):
        suffix = Path(entry.name).suffix.lower()
        if suffix not in suffixes and not (suffix == suffix_of_parts and _is_part(Path(entry.name).stem)):
            skipped[suffix or "without a suffix"] += 1
        elif entry.is_file() or not os.path.exists(
            entry.path
        ):  # a broken link raises an error when it is read
            files.append(Path(entry.path))
        else:
            skipped["no regular files"] += 1
    files.sort(key=lambda file: order(file.relative_to(root)))
    return Folder(root, tuple(files), skipped)


def _is_part(name: str) -> bool:
    return any(name.lower() in words for words in WORDS)


def _part(path: Path) -> int | None:
    """The split (0, 1 or 2) that a name directly in the data folder assigns."""
    name = path.name.lower()
    if Path(name).suffix in SOURCES:
        return None
    words = set(re.findall(r"[a-z]+", Path(name).stem)) if Path(name).suffix else {name}
    return next((part for part, names in enumerate(WORDS) if names & words), None)


def _entries(root: Path, excluded: frozenset[str], skipped: Counter[str]) -> Iterator[os.DirEntry]:
    """Yield all non-folder entries, folder by folder; linked folders come last."""
    seen = set()
    waiting, linked = deque([str(root)]), deque[str]()
    while waiting or linked:
        folder = (waiting or linked).popleft()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                skipped["linked folders that were already read"] += 1
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as unsorted:
                entries = sorted(unsorted, key=lambda entry: entry.name)
            for entry in entries:
                if entry.name.startswith("."):
                    skipped["hidden"] += 1
                elif not entry.is_dir():
                    yield entry
                elif entry.name not in excluded:
                    (linked if entry.is_symlink() else waiting).append(entry.path)
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def _text(file: Path) -> Iterator[Document]:
    chunks = _decoded_chunks(file)
    if first := next(chunks, ""):
        yield Document(shown(file), itertools.chain([first], chunks))


def _decoded_chunks(file: Path) -> Iterator[str]:
    """The text of a file, with \\r\\n as \\n."""
    with opened(file) as stream:
        block = stream.read(BLOCK)
        refuse_pointer(file, block)
        encoding = "utf-8-sig"  # UTF-8 with or without a byte order mark
        if file.suffix.lower() == ".py":
            try:
                encoding = tokenize.detect_encoding(io.BytesIO(block).readline)[0]  # PEP 263
            except SyntaxError as error:
                raise UserError(f"{file} is not valid text: {error}") from error
        decoder, start, kept = codecs.getincrementaldecoder(encoding)(), 0, ""
        while True:
            pending = len(decoder.getstate()[0])
            try:
                text = kept + decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = start - pending + error.start
                raise UserError(f"{file} is not valid {encoding} at byte {place}") from error
            kept = "\r" if block and text.endswith("\r") else ""
            if text := text.removesuffix(kept).replace("\r\n", "\n"):
                yield text
            if not block:
                return
            start += len(block)
            block = stream.read(BLOCK)


def _jsonl(file: Path) -> Iterator[Document]:
    for where, line in lines(file):
        if text := _text_of_record(line, where):
            yield Document(where, _valid_chunks(text, where))


def lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (file and line, content) of every non-blank line. Raises UserError for overlong lines."""
    with opened(file) as stream:
        for number in range(1, 1 << 62):
            if not (line := stream.readline(LONGEST_LINE + 1)):
                return
            where = f"{shown(file)}, line {number}"
            if number == 1:
                refuse_pointer(file, line)
            if len(line) > LONGEST_LINE:
                raise UserError(
                    f"{where} has more than {LONGEST_LINE >> 20} MiB; put long texts into a .txt file"
                )
            if line.strip():
                yield where, line


def _text_of_record(line: bytes, where: str) -> str:
    try:
        record = plain_json.loads(decoded(line, "utf-8-sig", where))
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg}") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise UserError(f"{where} must be an object with a string named text")
    return text


def _valid_chunks(text: str, where: str) -> Iterator[str]:
    for start in range(0, len(text), BLOCK):
        chunk = text[start : start + BLOCK]
        try:
            chunk.encode()
        except UnicodeEncodeError as error:  # JSON can encode an unpaired surrogate
            place = start + error.start
            raise UserError(f"{where}: the text is not valid Unicode at character {place}") from error
        yield chunk


@contextlib.contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open ``file`` for reading bytes. Raises UserError with its name on an OSError."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def decoded(content: bytes, encoding: str, where: str) -> str:
    """Decode ``content``. Raises UserError that begins with ``where`` if invalid."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not valid {encoding} at byte {error.start}") from error


def shown(path: Path) -> str:
    """Format a path for messages; bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")
