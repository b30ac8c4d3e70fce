"""Text documents: the files of a folder, the lines of a .jsonl, or the source of the standard library."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.core.untrusted.git_lfs import refuse_pointer

from . import files
from .files import shown

SUFFIXES = (".txt", ".py", ".md", ".jsonl")
# Enough for about 1000 default steps; tokenised in a few seconds on one core.
STANDARD_LIBRARY_BYTES = 4 << 20
BLOCK = 1 << 20  # bytes or characters that are read at once
LONGEST_LINE = 128 << 20  # bytes; as text and as JSON, a line needs up to nine times as much


class Document(NamedTuple):
    """A text in parts of any length, and its name in messages: file, or file and line."""

    where: str
    parts: Iterable[str]


@dataclass(frozen=True)
class Corpus:
    """Text files in a fixed order; ``name`` is used in messages, ``root`` is the base of relative paths.

    ``held_out``: the files of the validation and of the test part, if the names of files say so. ``notes``
    report what was skipped.
    """

    name: str
    root: Path
    files: tuple[Path, ...]
    held_out: tuple[tuple[Path, ...], ...] = ((), ())
    notes: tuple[str, ...] = ()

    def documents(self) -> Iterator[str]:
        """The text of every non-empty document. UserError as in `streams`."""
        return ("".join(document.parts) for document in self.streams())

    def streams(self) -> Iterator[Document]:
        """Every non-empty document: one per file, or one per line of a .jsonl.

        UserError for a file that cannot be read or is not valid text, at the latest when its parts are read.
        """
        for file in self.files:
            yield from _jsonl(file) if file.suffix.lower() == ".jsonl" else _text(file)

    def parts(self) -> list[Corpus | None]:
        """The training part; the validation and the test part, or None where no file is named so."""
        held_out = [dataclasses.replace(self, files=found, held_out=((), ())) for found in self.held_out]
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
    left_out = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
    found, size = [], 0
    for file in files.in_folder(root, (".py",), left_out).files:
        size += file.stat().st_size
        if size > STANDARD_LIBRARY_BYTES:
            break
        found.append(file)
    if not found:
        raise UserError(f"this Python has no source files in {root}; pass text with --input_dir")
    return Corpus("the standard library", root, tuple(found))


def corpus(path: Path) -> Corpus:
    """The text in a file or folder. UserError if there is none.

    The files of a folder are ordered by the hash of their relative path: random but stable, so ``--split``
    holds out a random choice of files. Hidden files are skipped.
    """
    if path.is_dir():
        none = f"{path} contains no {', '.join(SUFFIXES)} and no .bin + .idx file"
        return of_folder(Corpus, files.in_folder(path, SUFFIXES), none)
    if not path.exists():
        raise UserError(f"{path} does not exist; --input_dir takes a file or folder of text, or .bin + .idx")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} has the suffix {path.suffix!r}; accepted for text: {', '.join(SUFFIXES)}")
    return Corpus(str(path), path.parent, (path,))


def of_folder(kind: type[Corpus], found: files.Folder, none: str):
    """The text of the class ``kind`` in a folder; UserError with the sentence ``none`` if there is none."""
    path, skipped = found.root, [files.described(found)] if found.skipped else []
    if not found.files:
        raise UserError("; ".join([none, *skipped]))
    parts = found.parts()
    if not parts[0]:
        raise UserError(
            f"{path} contains only {shown(found.files[0].relative_to(path))}, and no training data"
        )
    return kind(str(path), path, parts[0], parts[1:], (*skipped, *files.assigned(found)))


def _text(file: Path) -> Iterator[Document]:
    parts = _decoded_parts(file)
    if first := next(parts, ""):
        yield Document(shown(file), _chained(first, parts))


def _chained(first: str, parts: Iterator[str]) -> Iterator[str]:
    yield first
    yield from parts


def _decoded_parts(file: Path) -> Iterator[str]:
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
            yield Document(where, _valid_parts(text, where))


def lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """(file and line, content) of every line that is not blank. UserError for one that is too long."""
    with opened(file) as stream:
        for number in range(1, 1 << 62):
            if not (line := stream.readline(LONGEST_LINE + 1)):
                return
            where = f"{shown(file)}, line {number}"
            if number == 1:
                refuse_pointer(file, line)
            if len(line) > LONGEST_LINE:
                raise UserError(
                    f"{where} has more than {LONGEST_LINE >> 20} MiB; put such a text into a .txt file"
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


def _valid_parts(text: str, where: str) -> Iterator[str]:
    for start in range(0, len(text), BLOCK):
        part = text[start : start + BLOCK]
        try:
            part.encode()
        except UnicodeEncodeError as error:  # JSON can encode an unpaired surrogate
            place = start + error.start
            raise UserError(f"{where}: the text is not valid Unicode at character {place}") from error
        yield part


@contextlib.contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open ``file`` for reading bytes. UserError with its name if the system refuses."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def decoded(content: bytes, encoding: str, where: str) -> str:
    """Decode ``content``. UserError that begins with ``where`` if it is not valid."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not valid {encoding} at byte {error.start}") from error
