"""Reads the dependencies and exports of a shared library from its file.

The library is not loaded, so none of its code runs. Only the dynamic segment is read, because section headers
may be stripped.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.hash import ELFHashTable, GNUHashTable

SYSTEM_FOLDERS = ("lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib", "usr/local/lib64")


class UnreadableLibrary(ValueError):
    """The file is not a 64-bit shared library."""


class Library:
    """The dynamic segment of the shared library ``path``.

    Attributes:
        needed: names of the libraries that it depends on (DT_NEEDED).
        runpath: folders that the loader searches for these (DT_RUNPATH, DT_RPATH), with $ORIGIN expanded.
        machine: "EM_AARCH64", "EM_X86_64", ...
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with open(path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            elf = ELFFile(self._bytes)
            self.machine = elf["e_machine"]
            dynamic = next(s for s in elf.iter_segments("PT_DYNAMIC") if isinstance(s, DynamicSegment))
            tags = list(dynamic.iter_tags())
            self.needed = tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
            origin = str(path.resolve().parent)
            self.runpath = tuple(
                folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin)
                for tag in tags
                if tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH")
                for folder in (tag.runpath if tag.entry.d_tag == "DT_RUNPATH" else tag.rpath).split(":")
            )
            self._hash = _hash_table(elf, dynamic)
            self._dynamic = dynamic
        except (ELFError, StopIteration, OSError, ValueError, AttributeError, KeyError) as failure:
            reason = f"{type(failure).__name__}: {failure}" if str(failure) else "no dynamic segment"
            raise UnreadableLibrary(f"{path} is not a readable 64-bit shared library ({reason})") from failure

    def exports(self, name: str) -> bool:
        """Whether the dynamic linker finds ``name`` in this library itself."""
        symbol = self._hash.get_symbol(name) if self._hash is not None else None
        return symbol is not None and symbol["st_shndx"] != "SHN_UNDEF"

    @cached_property
    def undefined(self) -> frozenset[str]:
        """The symbols that another library must export; weak ones may be missing."""
        # DT_GNU_HASH covers exported symbols only; all others precede them in the symbol table.
        hashed = isinstance(self._hash, GNUHashTable)
        count = self._hash.params["symoffset"] if hashed else self._dynamic.num_symbols()
        symbols = (self._dynamic.get_symbol(index) for index in range(count))
        return frozenset(
            symbol.name
            for symbol in symbols
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL" and symbol.name
        )

    def strings(self, pattern: bytes) -> frozenset[str]:
        """The zero-terminated strings in the file that match ``pattern`` entirely."""
        return frozenset(
            text.decode() for text in re.findall(rb"(?<=\0)" + pattern + rb"(?=\0)", self._bytes)
        )


def _hash_table(elf: ELFFile, dynamic: DynamicSegment):
    for tag, table in (("DT_GNU_HASH", GNUHashTable), ("DT_HASH", ELFHashTable)):
        _, offset = dynamic.get_table_offset(tag)
        if offset is not None:
            return table(elf, offset, dynamic)
    return None


@dataclass(frozen=True)
class Closure:
    """A library and its transitive dependencies.

    Attributes:
        libraries: by name, the library itself first, in the loader's order (breadth first).
        missing: names not found in any folder, and the library that needs each.
    """

    libraries: dict[str, Library]
    missing: dict[str, Path]

    def exports(self, name: str) -> bool:
        """Whether ``dlsym`` on a handle of the first library finds ``name``."""
        return any(library.exports(name) for library in self.libraries.values())

    def lacks(self, names: Iterable[str]) -> list[str]:
        return sorted(name for name in names if not self.exports(name))


def closure(path: Path, folders: Sequence[Path], root: Path = Path("/")) -> Closure:
    """The library ``path`` and its transitive dependencies.

    Args:
        folders: searched first, before each library's own path and the system's folders.
        root: the folder that contains the system's ``lib64`` and ``usr``.
    """
    system = [root / folder for folder in SYSTEM_FOLDERS]
    system += [folder for base in ("lib", "usr/lib") for folder in sorted((root / base).glob("*-linux-gnu"))]
    libraries = {path.name: Library(path)}
    missing: dict[str, Path] = {}
    queue = [libraries[path.name]]
    while queue:
        library = queue.pop(0)
        for name in library.needed:
            if name in libraries or name in missing:
                continue
            file = find(name, [*folders, *map(Path, library.runpath), *system])
            if file is None:
                missing[name] = library.path
            else:
                libraries[name] = Library(file)
                queue.append(libraries[name])
    return Closure(libraries, missing)


def find(name: str, folders: Iterable[Path]) -> Path | None:
    """The first file called ``name`` in ``folders``."""
    return next((folder / name for folder in folders if os.path.isfile(folder / name)), None)
