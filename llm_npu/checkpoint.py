"""Checkpoints that are whole or not there: ``<output_dir>/checkpoint-<step>/``.

A checkpoint is written into a hidden folder, flushed to the disk, marked complete, and only then renamed. The
mark, ``complete.json``, holds the size and the SHA-256 of every file:

    {"step": 200, "files": {"model.safetensors": {"bytes": 19013432, "sha256": "9f86..."}, ...}}

A process killed in the middle of a save leaves a hidden folder, which nothing reads and the next save
removes.
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

MARK = "complete.json"
NEWEST = "true"  # as in PaddleNLP's scripts
# What decides the shapes and the order of the parameters, in config.json.
SHAPING_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "tie_word_embeddings",
    "fuse_attention_qkv",
    "fuse_attention_ffn",
)
_UNFINISHED = ".unfinished-"


def path_of(output_dir: str | Path, step: int) -> Path:
    """Where the checkpoint of ``step`` is, or will be."""
    return Path(output_dir) / f"checkpoint-{step}"


@contextmanager
def writing(output_dir: str | Path, step: int) -> Iterator[Path]:
    """A folder to write the files of a checkpoint into; it becomes ``checkpoint-<step>`` when the block ends.

    When the block raises, the folder is removed and the output folder is as it was.
    """
    final = path_of(output_dir, step)
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final.parent)
    folder = final.parent / (_UNFINISHED + final.name)
    folder.mkdir()
    try:
        yield folder
        files = {file.name: _describe(file) for file in sorted(folder.iterdir()) if file.is_file()}
        (folder / MARK).write_text(json.dumps({"step": step, "files": files}, indent=1))
        for file in folder.iterdir():
            _flush(file)
        _flush(folder)
        if final.exists():  # of an earlier run; the new one is complete, so it may go
            final.rename(folder.parent / f"{_UNFINISHED}replaced-{final.name}")
        folder.rename(final)
        _flush(final.parent)
        _remove_leftovers(final.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


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
    found = []
    for folder in Path(output_dir).glob("checkpoint-*"):
        number = re.fullmatch(r"checkpoint-(\d+)", folder.name)
        if number and (folder / MARK).is_file():
            found.append((int(number[1]), folder))
    return [folder for _, folder in sorted(found)]


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


def requested(arguments, config) -> Path | None:
    """The checkpoint that the ``TrainingArguments`` ask to resume from, verified; None to start at step 0.

    ValueError when there is none, when it is damaged or of another model than the ``LlamaConfig`` ``config``,
    and when a run that starts anew would write between the checkpoints of an earlier one.
    """
    if arguments.resume_from_checkpoint is not None:
        folder = to_resume(str(arguments.resume_from_checkpoint), arguments.output_dir)
        _check_same_model(folder, arguments, config)
        return folder
    earlier = complete(arguments.output_dir)
    if earlier and not arguments.overwrite_output_dir:
        raise ValueError(
            f"{arguments.output_dir} holds {earlier[-1].name} of an earlier run; "
            "add --resume_from_checkpoint to continue it, --overwrite_output_dir to replace it, "
            "or give another --output_dir."
        )
    return None


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Remove the oldest complete checkpoints until ``keep`` are left; None or 0 keeps all."""
    for folder in complete(output_dir)[: -keep if keep else 0]:
        _remove(folder)


def clear(output_dir: str | Path) -> None:
    """Remove every complete checkpoint: those of an earlier run would be taken for this one's."""
    for folder in complete(output_dir):
        _remove(folder)


def _check_same_model(folder: Path, arguments, config) -> None:
    """The optimizer's state belongs to these very parameters: their shapes, their order, their dtype."""
    written = json.loads((folder / "config.json").read_text())
    low = "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else "float32"
    asked = {field: getattr(config, field) for field in SHAPING_FIELDS}
    asked["torch_dtype"] = low if arguments.fp16_opt_level == "O2" else "float32"
    for field, value in asked.items():
        if written.get(field, False) != value:
            raise ValueError(
                f"{folder} was written with {field} {written.get(field)}, but this run has {value}; "
                "resume with the arguments of the run that wrote it."
            )


def _remove(folder: Path) -> None:
    (folder / MARK).unlink()  # first the mark: half a removal must not look like a checkpoint
    shutil.rmtree(folder)


def _remove_leftovers(output_dir: Path) -> None:
    for leftover in output_dir.glob(_UNFINISHED + "*"):
        shutil.rmtree(leftover)


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
