"""Text documents: the files of a folder, the lines of a .jsonl, or the source of the standard library."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

SUFFIXES = (".txt", ".py", ".md", ".jsonl")
# Enough for about 1000 default steps; tokenised in a few seconds on one core.
STANDARD_LIBRARY_BYTES = 4 << 20


@dataclass(frozen=True)
class Corpus:
    """Text files in a fixed order; ``name`` is used in messages, ``root`` is the base of relative paths."""

    name: str
    root: Path
    files: tuple[Path, ...]

    def documents(self) -> Iterator[str]:
        """The text of every non-empty document: one per file, or one per line of a .jsonl.

        ValueError for a file that cannot be read or is not valid text.
        """
        for file in self.files:
            yield from _jsonl(file) if file.suffix == ".jsonl" else _text(file)

    def fingerprint(self) -> str:
        """A hash of the names, order and content of the files."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(os.fsencode(file.relative_to(self.root)) + b"\0")
            with opened(file) as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                digest.update(stream.tell().to_bytes(8, "little"))
        return digest.hexdigest()


def standard_library() -> Corpus:
    """About 4 MB of source code of the running Python's standard library, without tests and packages."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    files, size = [], 0
    for file in _files(root, (".py",), left_out):
        size += file.stat().st_size
        if size > STANDARD_LIBRARY_BYTES:
            break
        files.append(file)
    if not files:
        raise UserError(f"this Python has no source files in {root}; pass text with --input_dir")
    return Corpus("the standard library", root, tuple(files))


def corpus(path: Path) -> Corpus:
    """The text in a file or folder. ValueError if there is none.

    The files of a folder are ordered by the hash of their relative path: random but stable, so ``--split``
    holds out a random choice of files. Hidden files are skipped.
    """
    if path.is_dir():
        files = tuple(_files(path, SUFFIXES, set()))
        if not files:
            raise UserError(f"{path} contains no {', '.join(SUFFIXES)} and no .bin + .idx file")
        return Corpus(str(path), path, files)
    if not path.exists():
        raise UserError(f"{path} does not exist; --input_dir takes a file or folder of text, or .bin + .idx")
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} has the suffix {path.suffix!r}; accepted for text: {', '.join(SUFFIXES)}")
    return Corpus(str(path), path.parent, (path,))


def _files(root: Path, suffixes: tuple[str, ...], left_out: set[str]) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        found += [
            Path(folder, name) for name in names if name.endswith(suffixes) and not name.startswith(".")
        ]
    return sorted(found, key=lambda file: hashlib.sha256(os.fsencode(file.relative_to(root))).digest())


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def _text(file: Path) -> Iterator[str]:
    with opened(file) as stream:
        content = stream.read()
    encoding = "utf-8-sig"  # UTF-8 with or without a byte order mark
    if file.suffix == ".py":
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]  # PEP 263
        except SyntaxError as error:
            raise UserError(f"{file} is not valid text: {error}") from error
    text = decoded(content, encoding, str(file)).replace("\r\n", "\n")
    if text:
        yield text


def _jsonl(file: Path) -> Iterator[str]:
    with opened(file) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip() and (text := _text_of_record(line, f"{file}, line {number}")):
                yield text


def _text_of_record(line: bytes, where: str) -> str:
    try:
        record = plain_json.loads(decoded(line, "utf-8-sig", where))
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg}") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise UserError(f"{where} must be an object with a string named text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can encode an unpaired surrogate
        raise UserError(f"{where}: the text is not valid Unicode at character {error.start}") from error
    return text


@contextlib.contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open ``file`` for reading bytes. ValueError with its name if the system refuses."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def decoded(content: bytes, encoding: str, where: str) -> str:
    """Decode ``content``. ValueError that begins with ``where`` if it is not valid."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not valid {encoding} at byte {error.start}") from error
