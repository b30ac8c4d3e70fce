"""Finds profiles below a folder: msprof's exports and Paddle's traces, of one or many ranks."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.profiling import folders

_RANK = re.compile(r"(?<![a-z])rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
# op_summary_20240911123456.csv, msprof_slice_1_20240911123456.json; before CANN 8 op_summary_0_1.csv
_FILE = re.compile(
    r"(?P<table>op_summary|op_statistic|memory_record|npu_mem|msprof)(_slice_(?P<slice>\d+))?(_(?P<device>\d{1,3})(_\d{1,3})?)?"
    r"(_(?P<stamp>\d{12,}))?\.(csv|json)$"
)
_TRACE = re.compile(r"((?P<paddle>\.paddle_trace)|^trace_view.*)\.json(\.gz)?$")
TABLES = ("op_summary", "op_statistic", "memory_record", "npu_mem", "msprof")


@dataclass
class Export:
    """An msprof export: the files of each of TABLES, several if the export was split into slices."""

    folder: Path
    rank: int | None  # from the folder's name
    files: dict[str, list[Path]] = field(default_factory=lambda: {table: [] for table in TABLES})


@dataclass
class Found:
    """The profiles below some folders."""

    exports: list[Export]
    paddle: list[tuple[int | None, Path]]  # rank, trace
    merged: list[tuple[int | None, Path]]  # Paddle's trace and msprof's in one file
    notes: list[str]
    virtual: bool  # whether a virtual NPU wrote them
    machines: set[Path]  # the files with a machine's name, in the rank folders of a run on several


def search(directories: Iterable[Path]) -> Found:
    """Search all ``directories``. Raises ValueError if one has no readable profile."""
    profiles = Found([], [], [], [], False, set())
    for directory in directories:
        _search(directory, profiles)
    return profiles


def _search(directory: Path, profiles: Found) -> None:
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder; specify the folder of a profile")
    before, earlier = _count(profiles), len(profiles.notes)
    raw = []
    for folder, below, files in _walk(directory, profiles.notes):
        inside = folder.relative_to(directory)
        rank = _rank(inside) if inside.parts else _rank(Path(directory.name))
        if folder.name.startswith("PROF_"):
            export = _export(folder, rank, profiles.notes)
            profiles.virtual |= _says_virtual(folder)
            if export.files["op_summary"] or export.files["msprof"]:
                profiles.exports.append(export)
            else:
                raw.append(folder)
            below.clear()  # everything below has been searched
            continue
        if folder == directory and any(_FILE.match(file) for file in files):
            profiles.exports.append(_chosen(folder, rank, [folder / file for file in files], profiles.notes))
        for file in sorted(files):
            if trace := _TRACE.search(file):
                kind = profiles.paddle if trace["paddle"] else profiles.merged
                kind.append((rank, folder / file))
            elif file == folders.MACHINE and rank is not None:
                profiles.machines.add(folder / file)
    for folder in raw:
        profiles.notes.append(
            f"{folder.name} is not exported and was skipped. Run: msprof --export=on "
            f"--output={folder.resolve()}"
        )
    if _count(profiles) == before:
        raise UserError(
            f"{directory} contains no readable profile. "
            + " ".join(
                profiles.notes[earlier:]
                or ["Expected PROF_*/mindstudio_profiler_output or *.paddle_trace.json."]
            )
        )


def _walk(directory: Path, notes: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """``os.walk`` that follows links to folders, visits each folder once, and yields only regular files."""
    above = {folder.resolve() for folder in (directory, *directory.resolve().parents)}
    seen = set()

    def unreadable(error: OSError) -> None:
        notes.append(f"{error.filename} cannot be read and was skipped: {error.strerror}.")

    for name, below, files in os.walk(directory, onerror=unreadable, followlinks=True):
        folder = Path(name)
        seen.add(folder.resolve())
        below[:] = sorted(name for name in below if (folder / name).resolve() not in above | seen)
        yield folder, below, [path.name for path in _regular([folder / file for file in files], notes)]


def _regular(paths: Iterable[Path], notes: list[str]) -> list[Path]:
    """The regular files among ``paths``; adds a note for each other path named like a profile file."""
    files = []
    for path in paths:
        if path.is_file():
            files.append(path)
        elif _FILE.match(path.name) or _TRACE.search(path.name):
            notes.append(f"{path.name} was skipped: not a regular file, or a broken link.")
    return files


def _count(profiles: Found) -> int:
    return len(profiles.exports) + len(profiles.paddle) + len(profiles.merged)


def machine_of(profile: Path, rank: int, profiles: Found) -> str:
    """The machine name stored in ``profile`` or its nearest parent folder; "" if there is none."""
    for folder in (profile, *profile.parents):
        file = folder / folders.MACHINE
        if file in profiles.machines:
            try:
                return folders.read_machine(file)
            except ValueError as problem:
                profiles.notes.append(f"{problem}; the report does not name the machine of rank {rank}.")
                break
    return ""


def _rank(path: Path) -> int | None:
    """The number in the innermost folder named after a rank."""
    for part in reversed(path.parts):
        if match := _RANK.search(part):
            return int(match[1])
    return None


def _export(folder: Path, rank: int | None, notes: list[str]) -> Export:
    output = folder / "mindstudio_profiler_output"
    below = output if output.is_dir() else folder  # before CANN 8: device_0/summary and device_0/timeline
    return _chosen(folder, rank, _regular(sorted(below.rglob("*")), notes), notes)


def _chosen(folder: Path, rank: int | None, files: list[Path], notes: list[str]) -> Export:
    """The newest export among ``files``. A repeated export adds files with a later timestamp in their names.

    Slices of one export may have different timestamps; after another export, slice numbers occur twice.
    """
    export = Export(folder, rank)
    for table in TABLES:
        matches = [
            (match, path) for path in files if (match := _FILE.match(path.name)) and match["table"] == table
        ]
        slices = [(match["slice"], match["device"]) for match, _ in matches]
        if len(set(slices)) == len(slices) and all(number for number, _ in slices):
            export.files[table] = [path for _, path in matches]
            continue
        stamps = {match["stamp"] or "" for match, _ in matches}
        newest = max(stamps, default="")
        export.files[table] = [path for match, path in matches if (match["stamp"] or "") == newest]
        if len(stamps) > 1 and table in ("op_summary", "msprof"):
            notes.append(f"{folder.name} was exported {len(stamps)} times: {table} of {newest} is read.")
    return export


def _says_virtual(folder: Path) -> bool:
    """Whether the folder's metadata names the virtual NPU."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            if path.is_file() and "virtual NPU" in path.open(errors="replace").read(10_000):
                return True
    return False
