"""Checkpoints that are whole or not there: ``<output_dir>/checkpoint-<step>/``.

A checkpoint is written into a hidden folder, flushed to the disk, marked complete, and only then renamed. The
mark, ``complete.json``, holds the size and the SHA-256 of every file:

    {"step": 200, "files": {"model.safetensors": {"bytes": 19013432, "sha256": "9f86..."}, ...}}

A process killed in the middle of a save leaves a hidden folder, which nothing reads and the next save
removes. Which checkpoint a run may continue from is decided in ``llm_npu.resume``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_npu.atomic import exchange, remove_leftovers, unfinished

MARK = "complete.json"
NEWEST = "true"  # as in PaddleNLP's scripts
_NAME = re.compile(r"checkpoint-(\d+)")


def path_of(output_dir: str | Path, step: int) -> Path:
    """Where the checkpoint of ``step`` is, or will be."""
    return Path(output_dir) / f"checkpoint-{step}"


@contextmanager
def writing(output_dir: str | Path, step: int) -> Iterator[Path]:
    """A folder to write the files of a checkpoint into; it becomes ``checkpoint-<step>`` when the block ends.

    When the block raises, the folder is removed and the output folder is as it was.
    """
    final = path_of(output_dir, step)
    remove_leftovers(final.parent, "checkpoint-*")
    with unfinished(final) as folder:
        yield folder
        files = {file.name: _describe(file) for file in sorted(folder.iterdir()) if file.is_file()}
        (folder / MARK).write_text(json.dumps({"step": step, "files": files}, indent=1))
        for file in folder.iterdir():
            _flush(file)
        _flush(folder)
        if (final / MARK).is_file():
            exchange(folder, final)  # ``folder`` is the old one now, and goes at the end of the block
        else:
            if final.exists():  # half removed, or left by a killed stock Trainer
                shutil.rmtree(final)
            folder.rename(final)
        _flush(final.parent)


def verify(folder: str | Path) -> int:
    """The step of the complete checkpoint ``folder``; ValueError says which file is missing or damaged."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; pass a checkpoint folder, or no path for the newest one."
        )
    if not (folder / MARK).is_file():
        raise ValueError(f"{folder} has no {MARK}: it was not written to the end. {_alternative(folder)}")
    try:
        mark = json.loads((folder / MARK).read_text())
        step, files = int(mark["step"]), {name: dict(wanted) for name, wanted in mark["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder} is corrupt: {MARK} cannot be read. {_alternative(folder)}") from None
    for name, wanted in files.items():
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{folder} is corrupt: {name} is missing. {_alternative(folder)}")
        size = file.stat().st_size
        if size != wanted.get("bytes"):
            was = f"{name} has {size} bytes instead of {wanted.get('bytes')}"
            raise ValueError(f"{folder} is corrupt: {was}. {_alternative(folder)}")
        if _describe(file) != wanted:
            raise ValueError(f"{folder} is corrupt: {name} has another SHA-256. {_alternative(folder)}")
    return step


def complete(output_dir: str | Path) -> list[Path]:
    """The checkpoints in ``output_dir`` that carry the mark, oldest first."""
    folders = (folder for folder in Path(output_dir).glob("checkpoint-*") if _NAME.fullmatch(folder.name))
    return sorted((folder for folder in folders if (folder / MARK).is_file()), key=step_of)


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint in an output folder."""
    return int(_NAME.fullmatch(folder.name)[1])


def to_resume(wanted: str, output_dir: str | Path) -> Path:
    """The verified checkpoint that ``--resume_from_checkpoint wanted`` means.

    ``wanted`` is a folder, or ``true`` for the newest complete checkpoint in ``output_dir``.
    ValueError when there is none or when it is damaged.
    """
    if wanted.lower() == NEWEST:
        found = complete(output_dir)
        if not found:
            raise ValueError(
                f"{output_dir} holds no complete checkpoint to resume from; "
                "leave --resume_from_checkpoint out to start at step 0."
            )
        folder = found[-1]
    else:
        folder = Path(wanted)
    verify(folder)
    return folder


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Remove the oldest complete checkpoints until ``keep`` are left; None or 0 keeps all."""
    for folder in complete(output_dir)[: -keep if keep else 0]:
        _remove(folder)


def clear(output_dir: str | Path, above: int = -1) -> None:
    """Remove every complete checkpoint of a step after ``above``, the newest first.

    They are of an earlier run, or of one that is now continued from before them: pruning and resuming would
    take them for this run's newest.
    """
    for folder in reversed(complete(output_dir)):
        if step_of(folder) > above:
            _remove(folder)


def _remove(folder: Path) -> None:
    (folder / MARK).unlink()  # first the mark: half a removal must not look like a checkpoint
    shutil.rmtree(folder)


def _describe(file: Path) -> dict[str, int | str]:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alternative(folder: Path) -> str:
    others = [other for other in complete(folder.parent) if other.name != folder.name]
    return (
        f"Resume from {others[-1]} instead." if others else "There is no other complete checkpoint beside it."
    )
