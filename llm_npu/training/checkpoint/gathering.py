"""The checkpoint to resume from where its files are on several disks: chosen, and gathered onto each.

A checkpoint is complete if one disk has its mark and each of its files is undamaged on some disk. Files go
from disk to disk over the communicator of the run, a chunk at a time, and every disk makes whole tensors of
the parts (``parts``). Its folder then has the layout of a shared disk, and replaces the parts at once.
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
from llm_npu.training.checkpoint.parts import Assembly, Contents, contents
from llm_npu.training.checkpoint.write_plan import kind_of_part
from paddle_fused import strict_json

CHUNK = 16 << 20  # bytes that are sent at once

# {name of a file: its "bytes" and "sha256"}, and {name of a file: the disks that have it undamaged}
Manifest = Mapping[str, Mapping]
Holders = Mapping[str, list[int]]


class Found(NamedTuple):
    """What a disk says of a checkpoint: the folder's name, what its mark says, and which files are there."""

    name: str
    step: int
    files: Manifest
    complete: bool
    present: list[str]


class Candidate(NamedTuple):
    """A checkpoint by its ``name``; ``absent``: how many of its ``files`` no disk seems to have."""

    name: str
    step: int
    files: Manifest
    absent: int


def to_resume(
    wanted: bool | str, output_dir: str | Path, disks: Disks, say: Callable[[str], None] = print
) -> Path | None:
    """``folder.to_resume`` where ``disks`` are those of ``output_dir``, and this disk's folder has all files.

    UserError, which lists what no machine has, where parts are missing or damaged. Collective.
    """
    ranks, newest = disks.ranks, wanted in (folders.NEWEST, folders.IF_ANY)
    place = Path(output_dir) if newest else Path(wanted).parent
    if not ranks.from_first(place.resolve() == Path(output_dir).resolve()):
        disks = Disks.to_read(place, ranks)
    with ranks.raise_on_all_ranks():
        found = []
        if disks.first:
            found = [each for each in map(_look, _listed(wanted, output_dir, newest)) if each]
    candidates = _candidates(ranks.gather(found))
    if not disks.several and not any(map(kind_of_part, (name for each in candidates for name in each.files))):
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
        "leave --resume_from_checkpoint out to start at step 0."
        if newest
        else f"{wanted} is no complete checkpoint on any machine: none has a {folders.MARK} that can be read."
    )


def _listed(wanted: bool | str, output_dir: str | Path, newest: bool) -> list[Path]:
    return folders.written(output_dir) if newest else [Path(wanted)]


def _look(folder: Path) -> Found | None:
    """What this disk has of a checkpoint; None without a mark that can be read."""
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
        return Found(folder.name, step, files, mark == folders.MARK, present)
    return None


def _candidates(of_ranks: list[list[Found]]) -> list[Candidate]:
    """The checkpoints that are marked as complete, newest first; of one step those first that lack least."""
    same: dict[tuple, list[Found]] = {}
    for each in (found for of_rank in of_ranks for found in of_rank):
        same.setdefault((each.step, strict_json.dumps(each.files, sort_keys=True)), []).append(each)
    found = []
    for group in same.values():
        name, step, files, *_ = group[0]
        if any(each.complete for each in group):
            absent = len(files.keys() - {name for each in group for name in each.present})
            found.append(Candidate(name, step, files, absent))
    return sorted(found, key=lambda each: (-each.step, each.absent))


def _holders(files: Manifest, folder: Path, disks: Disks) -> tuple[Holders, dict[str, str]]:
    """Which disks have which files, and what is wrong with those that none has. All ranks read."""
    own = {}
    with disks.ranks.raise_on_all_ranks():
        own = {name: folders.damage_of(folder / name, files[name]) for name in disks.share(sorted(files))}
    holders: dict[str, list[int]] = {name: [] for name in files}
    damage: dict[str, list[str]] = {name: [] for name in files}
    for rank, told in enumerate(disks.ranks.gather(own)):
        for name, why in told.items():
            if why is None:
                holders[name].append(disks.of_rank[rank])
            elif why != folders.MISSING:
                damage[name].append(f"{why} on {_machine(rank)}")
    lost = {name: "; ".join(damage[name]) or "is on no machine" for name in files if not holders[name]}
    return holders, lost


def _machine(rank: int) -> str:
    return next((str(each) for each in machines.read().all if rank in each.ranks), f"rank {rank}")


def _refusal(candidate: Candidate, damage: Mapping[str, str]) -> str:
    sizes = {name: candidate.files[name].get("bytes") for name in sorted(damage)}
    lines = [f"  {name}  {size} bytes  {damage[name]}" for name, size in sizes.items()]
    return (
        f"{candidate.name} of step {candidate.step} is not complete on these machines; bring back the one "
        "that has these files, or resume from another checkpoint:\n" + "\n".join(lines)
    )


def _gather(candidate: Candidate, folder: Path, holders: Holders, disks: Disks) -> None:
    """Make ``folder`` whole on every disk. Collective; a kill leaves the folder as it was, or whole."""
    files, ranks = candidate.files, disks.ranks
    parts = [name for name in files if kind_of_part(name)]
    takers = [disk for disk in disks.all if parts or any(disk not in holders[name] for name in files)]
    if not takers:
        return
    of_files = _contents_of(parts, folder, holders, disks)
    takes = disks.first and disks.own in takers
    new = spare = assembly = None
    with ExitStack() as stack:
        with ranks.raise_on_all_ranks():
            if takes:
                new = stack.enter_context(unfinished(folder))
                spare = stack.enter_context(unfinished(folder.with_name(f"{folder.name}-received")))
                assembly = stack.enter_context(Assembly(new, of_files))
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
        made, own = [], {}
        with ranks.raise_on_all_ranks():
            if takes:
                assembly.close()
                made = [name for name in folders.contents(new) if name not in files]
        place, made = disks.from_first((str(new), made))
        with ranks.raise_on_all_ranks():
            own = folders.checksums(Path(place), disks.share(made))
        told = ranks.gather(own)
        with ranks.raise_on_all_ranks():
            if takes:
                whole = {name: files[name] for name in files if name not in parts}
                for rank in disks.members:
                    whole |= told[rank]
                folders.commit(new, folder, whole, step=candidate.step)


def _contents_of(parts: list[str], folder: Path, holders: Holders, disks: Disks) -> dict[str, Contents]:
    """What is in all files of parts, of which each is read by the first rank of a disk that has it."""
    own = {}
    with disks.ranks.raise_on_all_ranks():
        own = {name: contents(folder / name) for name in parts if holders[name][0] == disks.ranks.rank}
    return {name: found for told in disks.ranks.gather(own) for name, found in told.items()}


def _send(file: Path, target: Path | None, about: Mapping, source: int, ranks: run_ranks.Ranks) -> None:
    """``file`` of the rank ``source``, as ``target`` where that is not None. Collective.

    An error of a file is raised when all ranks have received everything: nobody waits for the others.
    """
    errors: list[OSError] = []
    digest = hashlib.sha256()

    def tried(action: Callable, *arguments):
        try:
            return None if errors else action(*arguments)
        except OSError as error:
            errors.append(error)

    sends, receives = source == ranks.rank, target is not None
    with ExitStack() as stack:
        stream = tried((target or file).open, "wb" if receives else "rb") if sends or receives else None
        if stream is not None:
            stack.callback(tried, stream.close)  # which may write
        for begin in range(0, about["bytes"], CHUNK):
            length = min(CHUNK, about["bytes"] - begin)
            words = np.zeros(-(-length // 4), np.int32)
            if sends:
                tried(stream.readinto, words.view(np.uint8)[:length])
            chunk = run_ranks.broadcast(words, source).view(np.uint8)[:length]
            if receives:
                digest.update(chunk)
                tried(stream.write, chunk)
    if errors:
        raise errors[0]
    if receives and digest.hexdigest() != about["sha256"]:
        raise OSError(f"{target.name} arrived with another SHA-256")
