"""Checkpoint folders: atomic completion, verification and rotation.

A checkpoint is written to a hidden staging folder, marked complete, flushed to disk, and only then renamed.
The mark, ``complete.json``, contains the size and SHA-256 of every file:

    {"step": 200, "files": {"model.safetensors": {"bytes": 19013432, "sha256": "9f86..."}, ...}}

A process killed during a save leaves its staging folder, which is never read and is removed by the next save.
``llm_npu.training.resume`` decides which checkpoint a run may resume from.

If each machine has its own disk, each disk has some of the files, and all disks have the same mark. The
commit has three phases: the other disks rename their folders, with the mark named ``prepared.json``; then the
first disk renames its folder with ``complete.json``, which completes the checkpoint; then the other disks
rename their marks.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llm_npu.core.atomic import flush, remove, remove_leftovers, replace, unfinished
from llm_npu.core.console import say
from llm_npu.core.errors import UserError, naming
from llm_npu.core.ranks import ALONE, Ranks
from llm_npu.core.untrusted import pickles, plain_json
from llm_npu.launch import folder_lock
from paddle_fused import strict_json

MARK = "complete.json"
PREPARED = "prepared.json"  # the mark of a written part while other machines may still be writing
NEWEST = True  # as in PaddleNLP's scripts
IF_ANY = "auto"  # the newest, or step 0 if there is none; for commands that are restarted
MISSING = "is missing"
# Prefixes of the files that a run reads from a checkpoint: each must have a checksum.
READ = (
    *("adapter", "config.", "lora", "model", "optimizer", "peft_model", "rng_state_", "run.", "scaler."),
    *("scheduler.", "trainer_state."),
)
_NAME = re.compile(r"checkpoint-(\d+)")


def path_of(output_dir: str | Path, step: int) -> Path:
    """The folder of the checkpoint of ``step``, whether or not it exists."""
    return Path(output_dir) / f"checkpoint-{step}"


@contextmanager
def staging_folder(output_dir: str | Path, step: int) -> Iterator[Path]:
    """The hidden folder of an unfinished checkpoint, removed on exit unless ``commit`` has renamed it."""
    final = path_of(output_dir, step)
    remove_leftovers(final.parent, "checkpoint-*")
    with unfinished(final) as folder:
        yield folder


def contents(folder: Path) -> list[str]:
    """The names of the files in ``folder``, in alphabetical order."""
    return sorted(file.name for file in folder.iterdir() if file.is_file())


def checksums(folder: Path, names: list[str]) -> dict[str, dict[str, int | str]]:
    """Size and SHA-256 of the files ``names``."""
    return {name: _describe(folder / name) for name in names}


def commit(
    folder: Path,
    final: Path,
    files: dict[str, dict[str, int | str]],
    mark: str = MARK,
    step: int | None = None,
) -> None:
    """Mark ``folder`` as complete and rename it to ``final``.

    Args:
        files: The `checksums` of the files of all disks.
        mark: MARK or PREPARED.
        step: By default the step in the name of ``final``.

    Raises:
        OSError: A file has no checksum, so damage to it could not be detected.
        UserError: Another run has acquired the lock of the output folder.
    """
    folder_lock.check(final.parent)
    if unread := sorted(set(contents(folder)) - files.keys()):
        raise OSError(errno.EIO, "no checksum was computed", str(folder / unread[0]))
    step = step_of(final) if step is None else step
    with naming(folder / mark):
        (folder / mark).write_text(strict_json.dumps({"step": step, "files": files}, indent=1))
    replace(folder, final)


def confirm(final: Path) -> None:
    """Mark the prepared part in ``final`` as belonging to a complete checkpoint."""
    (final / PREPARED).rename(final / MARK)
    flush(final)


def digests(folder: str | Path) -> dict[str, str]:
    """{file: SHA-256} of a complete checkpoint, from its mark."""
    return {name: about["sha256"] for name, about in manifest(Path(folder))[1].items()}


def verify(folder: str | Path, ranks: Ranks = ALONE) -> int:
    """The step of the complete checkpoint ``folder``. Raises UserError that names a missing or damaged file.

    Collective: the ranks divide the reading.
    """
    folder = Path(folder)
    with ranks.raise_on_all_ranks():
        return _verify(folder, ranks)


def _verify(folder: Path, ranks: Ranks) -> int:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; pass a checkpoint folder, or no path for the newest one")
    if not (folder / MARK).is_file():
        if pickle := pickles.first(folder):
            raise UserError(
                f"{folder} is not a checkpoint of this trainer: {pickle.name} {pickles.REASON}. To start "
                f"from its weights with --model_name_or_path, {pickles.WEIGHTS}."
            )
        raise UserError(f"{folder} has no {MARK}: it was not completely written")
    step, files = manifest(folder)
    if _NAME.fullmatch(folder.name) and step_of(folder) != step:
        raise UserError(f"{folder} contains step {step}; restore the folder's original name")
    entries = sorted(entry.name for entry in folder.iterdir())  # includes FIFOs and devices
    unlisted = [name for name in entries if name.startswith(READ) and name not in files]
    if unlisted:
        raise UserError(f"{folder} is corrupt: {unlisted[0]} is not in its {MARK}; remove the added file")
    for name, about in ranks.share(list(files.items())):
        if damage := damage_of(folder / name, about):
            raise UserError(f"{folder} is corrupt: {name} {damage}")
    return step


def damage_of(file: Path, expected: Mapping[str, int | str]) -> str | None:
    """Describe the damage of a file with the ``expected`` size and SHA-256; None if undamaged."""
    if not file.is_file():
        return MISSING
    if (size := file.stat().st_size) != expected.get("bytes"):
        return f"has {size} bytes instead of {expected.get('bytes')}"
    return None if _describe(file) == expected else "has a different SHA-256"


def manifest(folder: Path, mark: str = MARK) -> tuple[int, dict[str, dict]]:
    """The step, and the size and digest of each file. Raises UserError for an incomplete mark."""
    try:
        content = plain_json.mapping(folder / mark)
        step, files = content["step"], {name: dict(about) for name, about in content["files"].items()}
        if type(step) is int and all(Path(name).name == name and "sha256" in files[name] for name in files):
            return step, files
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{folder} is corrupt: {mark} cannot be read")


def marked_step(folder: Path) -> int:
    """The step of a complete checkpoint, from its mark."""
    return manifest(folder)[0]


def complete(output_dir: str | Path) -> list[Path]:
    """The checkpoints in ``output_dir`` with the mark, oldest first."""
    return [folder for folder in written(output_dir) if (folder / MARK).is_file()]


def written(output_dir: str | Path) -> list[Path]:
    """The complete and the prepared checkpoints in ``output_dir``, oldest first."""
    folders = (folder for folder in Path(output_dir).glob("checkpoint-*") if _NAME.fullmatch(folder.name))
    marked = (folder for folder in folders if any((folder / mark).is_file() for mark in (MARK, PREPARED)))
    return sorted(marked, key=step_of)


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(_NAME.fullmatch(folder.name)[1])


def to_resume(
    wanted: bool | str, output_dir: str | Path, ranks: Ranks = ALONE, say: Callable[[str], None] = print
) -> Path | None:
    """The verified checkpoint for ``--resume_from_checkpoint wanted``, the same on all ``ranks``.

    ``wanted`` is a folder, or True for the newest complete and undamaged checkpoint in ``output_dir``;
    ``say`` gets a line for each newer, damaged checkpoint. Raises UserError if there is none, or if the named
    folder is damaged. ``auto`` is like True, but returns None if there is no complete checkpoint.
    """
    if wanted not in (NEWEST, IF_ANY):
        chosen = Path(wanted)
        try:
            verify(chosen, ranks)
        except UserError as error:
            raise UserError(f"{error}{_alternative(chosen, ranks)}") from None
        return chosen
    damaged: list[UserError] = []
    newest = _newest_undamaged(_of_all(output_dir, ranks), ranks, damaged)
    if newest is not None:
        for error in damaged:
            say(f"note     {error}")
        return newest
    if damaged:
        reasons = "; ".join(str(error).rstrip(".") for error in damaged)
        raise UserError(
            f"{output_dir} has no undamaged checkpoint to resume from: {reasons}. "
            "Restore the missing files, or start at step 0 with --overwrite_output_dir and without "
            "--resume_from_checkpoint."
        )
    if wanted == IF_ANY:
        return None
    raise UserError(
        f"{output_dir} has no complete checkpoint to resume from; "
        "remove --resume_from_checkpoint to start at step 0"
    )


def _of_all(output_dir: str | Path, ranks: Ranks) -> list[Path]:
    """The complete checkpoints in ``output_dir``, newest first, as rank 0 sees them. Collective."""
    return list(map(Path, reversed(ranks.from_first([str(folder) for folder in complete(output_dir)]))))


def _newest_undamaged(folders: list[Path], ranks: Ranks, damaged: list[UserError]) -> Path | None:
    """The first undamaged folder; the errors of earlier ones are added to ``damaged``. Collective."""
    for folder in folders:
        try:
            verify(folder, ranks)
            return folder
        except UserError as error:
            damaged.append(error)
    return None


def _alternative(folder: Path, ranks: Ranks) -> str:
    """Advice on which verified checkpoint to use instead of the damaged ``folder``. Collective."""
    others = [other for other in _of_all(folder.parent, ranks) if other.name != folder.name]
    undamaged = _newest_undamaged(others, ranks, [])
    if undamaged is not None:
        return f" Resume from {undamaged} instead."
    return f" There is no {'undamaged' if others else 'complete'} checkpoint in its folder."


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Remove the oldest complete checkpoints beyond ``keep``; None or 0 keeps all."""
    for folder in complete(output_dir)[: -keep if keep else 0]:
        _remove(folder)


def clear(output_dir: str | Path, above: int = -1) -> None:
    """Remove all checkpoints of steps after ``above``, newest first.

    They belong to an earlier run, or to this run before it resumed from an earlier step. Pruning and resuming
    would mistake them for this run's newest checkpoints.
    """
    for folder in reversed(written(output_dir)):
        if step_of(folder) > above:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a checkpoint. If it is a link, only the link: its target may be the only copy."""
    if folder.is_symlink():
        say(f"note     {folder} is a link and is removed; the checkpoint in {folder.resolve()} stays")
    remove(folder)


def _describe(file: Path) -> dict[str, int | str]:
    digest = hashlib.sha256()
    with naming(file), file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}
