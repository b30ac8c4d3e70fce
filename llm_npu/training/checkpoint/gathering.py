"""Selects the checkpoint to resume from if each machine has its own disk, and gathers it onto every disk.

A checkpoint is complete if one disk has its mark and each of its files is undamaged on some disk. Files are
sent between disks in chunks over the communicator of the run, and every disk assembles whole tensors from the
parts (`write_plan.Assembly`). The new folder has the layout of a shared disk, and replaces the parts
atomically.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llm_npu.core import machines
from llm_npu.core import ranks as run_ranks
from llm_npu.core.atomic import unfinished
from llm_npu.core.errors import UserError
from llm_npu.training.checkpoint import folder as folders
from llm_npu.training.checkpoint.disks import Disks
from llm_npu.training.checkpoint.write_plan import Assembly, Contents, contents, kind_of_part
from paddle_fused import strict_json

CHUNK = 16 << 20  # bytes of a broadcast

# {name of a file: its "bytes" and "sha256"}; {name of a file: the disks with an undamaged copy}
Manifest = Mapping[str, Mapping]
Holders = Mapping[str, list[int]]


class LocalCheckpoint(NamedTuple):
    """A checkpoint on one disk.

    Attributes:
        name: The folder's name.
        step, files, complete: The content of its mark.
        present: Files with the expected size.
    """

    name: str
    step: int
    files: Manifest
    complete: bool
    present: list[str]


class Candidate(NamedTuple):
    """A checkpoint over all disks; ``absent`` is the number of ``files`` that seem to be on no disk."""

    name: str
    step: int
    files: Manifest
    absent: int


def to_resume(
    wanted: bool | str, output_dir: str | Path, disks: Disks, say: Callable[[str], None] = print
) -> Path | None:
    """`folder.to_resume` for several ``disks``: the folder on this disk, with all files.

    Collective. Raises UserError that lists files for which no machine has an undamaged copy.
    """
    ranks, newest = disks.ranks, wanted in (folders.NEWEST, folders.IF_ANY)
    place = Path(output_dir) if newest else Path(wanted).parent
    if not ranks.from_first(place.resolve() == Path(output_dir).resolve()):
        disks = Disks.to_read(place, ranks)
    with ranks.raise_on_all_ranks():
        local = []
        if disks.first:
            paths = folders.written(output_dir) if newest else [Path(wanted)]
            local = [checkpoint for checkpoint in map(_local_checkpoint, paths) if checkpoint]
    candidates = _candidates(ranks.gather(local))
    names = (name for candidate in candidates for name in candidate.files)
    if not disks.several and not any(map(kind_of_part, names)):
        return folders.to_resume(wanted, output_dir, ranks, say)
    refusals: dict[str, str] = {}
    for candidate in candidates:
        folder = place / candidate.name if newest else Path(wanted)
        holders, damage = _holders(candidate.files, folder, disks)
        if damage:
            refusals.setdefault(candidate.name, _refusal(candidate, damage))
            continue
        for name in refusals.keys() - {candidate.name}:
            say(f"note     {refusals[name]}")
        _gather(candidate, folder, holders, disks)
        return folder
    if refusals:
        raise UserError(next(iter(refusals.values())))
    if wanted == folders.IF_ANY:
        return None
    raise UserError(
        f"no machine has a complete checkpoint in {output_dir}; "
        "remove --resume_from_checkpoint to start at step 0"
        if newest
        else f"{wanted} is not a complete checkpoint on any machine: none has a readable {folders.MARK}"
    )


def _local_checkpoint(folder: Path) -> LocalCheckpoint | None:
    """The checkpoint ``folder`` on this disk; None without a readable mark."""
    for mark in (folders.MARK, folders.PREPARED):
        try:
            step, files = folders.manifest(folder, mark)
        except (OSError, UserError):
            continue
        present = [
            name
            for name, about in files.items()
            if (folder / name).is_file() and (folder / name).stat().st_size == about.get("bytes")
        ]
        return LocalCheckpoint(folder.name, step, files, mark == folders.MARK, present)
    return None


def _candidates(of_ranks: list[list[LocalCheckpoint]]) -> list[Candidate]:
    """The checkpoints marked as complete, newest first, then by number of absent files."""
    same: dict[tuple, list[LocalCheckpoint]] = {}
    for local in (local for of_rank in of_ranks for local in of_rank):
        same.setdefault((local.step, strict_json.dumps(local.files, sort_keys=True)), []).append(local)
    candidates = []
    for copies in same.values():
        name, step, files, *_ = copies[0]
        if any(copy.complete for copy in copies):
            absent = len(files.keys() - {name for copy in copies for name in copy.present})
            candidates.append(Candidate(name, step, files, absent))
    return sorted(candidates, key=lambda candidate: (-candidate.step, candidate.absent))


def _holders(files: Manifest, folder: Path, disks: Disks) -> tuple[Holders, dict[str, str]]:
    """The disks with an undamaged copy of each file, and the damage of files without one. Collective."""
    own = {}
    with disks.ranks.raise_on_all_ranks():
        own = {name: folders.damage_of(folder / name, files[name]) for name in disks.share(sorted(files))}
    holders: dict[str, list[int]] = {name: [] for name in files}
    damage: dict[str, list[str]] = {name: [] for name in files}
    for rank, damage_of_rank in enumerate(disks.ranks.gather(own)):
        for name, reason in damage_of_rank.items():
            if reason is None:
                holders[name].append(disks.of_rank[rank])
            elif reason != folders.MISSING:
                damage[name].append(f"{reason} on {_machine(rank)}")
    lost = {name: "; ".join(damage[name]) or "is on no machine" for name in files if not holders[name]}
    return holders, lost


def _machine(rank: int) -> str:
    owners = (str(machine) for machine in machines.read().all if rank in machine.ranks)
    return next(owners, f"rank {rank}")


def _refusal(candidate: Candidate, damage: Mapping[str, str]) -> str:
    sizes = {name: candidate.files[name].get("bytes") for name in sorted(damage)}
    lines = [f"  {name}  {size} bytes  {damage[name]}" for name, size in sizes.items()]
    return (
        f"{candidate.name} of step {candidate.step} is not complete on these machines; add the machine "
        "with these files, or resume from another checkpoint:\n" + "\n".join(lines)
    )


def _gather(candidate: Candidate, folder: Path, holders: Holders, disks: Disks) -> None:
    """Make ``folder`` complete on every disk, atomically. Collective."""
    files, ranks = candidate.files, disks.ranks
    parts = [name for name in files if kind_of_part(name)]
    takers = [disk for disk in disks.all if parts or any(disk not in holders[name] for name in files)]
    if not takers:
        return
    part_files = _contents_of(parts, folder, holders, disks)
    takes = disks.first and disks.own in takers
    new = spare = assembly = None
    with ExitStack() as stack:
        with ranks.raise_on_all_ranks():
            if takes:
                new = stack.enter_context(unfinished(folder))
                spare = stack.enter_context(unfinished(folder.with_name(f"{folder.name}-received")))
                assembly = stack.enter_context(Assembly(new, part_files))
        for name in sorted(files):
            lacking = [disk for disk in takers if disk not in holders[name]]
            with ranks.raise_on_all_ranks():
                file = folder / name
                if lacking:
                    target = spare / name if takes and disks.own in lacking else None
                    _send(file, target, files[name], holders[name][0], ranks)
                    file = target or file
                if takes and name in parts:
                    assembly.add(name, file)
                elif takes:
                    shutil.copyfile(file, new / name)
                if takes and disks.own in lacking:
                    file.unlink()
        assembled, own = [], {}
        with ranks.raise_on_all_ranks():
            if takes:
                assembly.close()
                assembled = [name for name in folders.contents(new) if name not in files]
        place, assembled = disks.from_first((str(new), assembled))
        with ranks.raise_on_all_ranks():
            own = folders.checksums(Path(place), disks.share(assembled))
        checksums = ranks.gather(own)
        with ranks.raise_on_all_ranks():
            if takes:
                whole = {name: files[name] for name in files if name not in parts}
                for rank in disks.members:
                    whole |= checksums[rank]
                folders.commit(new, folder, whole, step=candidate.step)


def _contents_of(parts: list[str], folder: Path, holders: Holders, disks: Disks) -> dict[str, Contents]:
    """The contents of all part files, each read by the first rank of the first disk with a copy."""
    own = {}
    with disks.ranks.raise_on_all_ranks():
        own = {name: contents(folder / name) for name in parts if holders[name][0] == disks.ranks.rank}
    return {name: content for of_rank in disks.ranks.gather(own) for name, content in of_rank.items()}


def _send(file: Path, target: Path | None, about: Mapping, source: int, ranks: run_ranks.Ranks) -> None:
    """Send ``file`` from rank ``source``; ranks with a ``target`` write it there. Collective.

    File errors are raised after the last chunk, so that no rank waits for another.
    """
    errors: list[OSError] = []
    digest = hashlib.sha256()

    def attempt(action: Callable, *arguments):
        try:
            return None if errors else action(*arguments)
        except OSError as error:
            errors.append(error)

    sends, receives = source == ranks.rank, target is not None
    with ExitStack() as stack:
        stream = attempt((target or file).open, "wb" if receives else "rb") if sends or receives else None
        if stream is not None:
            stack.callback(attempt, stream.close)  # closing may write
        for begin in range(0, about["bytes"], CHUNK):
            length = min(CHUNK, about["bytes"] - begin)
            words = np.zeros(-(-length // 4), np.int32)
            if sends:
                attempt(stream.readinto, words.view(np.uint8)[:length])
            chunk = run_ranks.broadcast(words, source).view(np.uint8)[:length]
            if receives:
                digest.update(chunk)
                attempt(stream.write, chunk)
    if errors:
        raise errors[0]
    if receives and digest.hexdigest() != about["sha256"]:
        raise OSError(f"{target.name} was received with a different SHA-256")
