"""The cache folder: trained tokenizers and tokenised text."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError

from .atomic import publish, remove, unfinished

RECORD = ".files"  # in each folder: the sizes and names of its files


def cached(name: str, build: Callable[[Path], None], cache: str | None = None) -> Path:
    """The folder ``name`` of the cache; ``build(folder)`` fills it if it does not exist, or is not whole.

    A cleaner of temporary files may empty a cache and leave its folders.

    ``name`` must contain a hash of everything that the content depends on. One process builds, and the others
    that need the folder wait for it, such as the ranks of a machine. Where the file system has no locks, all
    build, and one wins. A process killed while it builds leaves no folder. UserError if the cache is not
    writable; an OSError of ``build`` about another file passes through.
    """
    target = cache_folder(cache) / name
    if _is_whole(target):
        return target
    try:
        with _only_builder(target):
            if not _is_whole(target):
                with unfinished(target) as folder:
                    build(folder)
                    _record(folder)
                    if not _is_whole(target):
                        with suppress(FileNotFoundError):
                            remove(target)
                    publish(folder, target)
    except OSError as error:
        if error.filename is not None and not _related(target.parent, Path(str(error.filename))):
            raise
        raise UserError(
            f"the cache folder {target.parent} cannot be written ({error.strerror}); "
            "name another with LLM_NPU_CACHE or --data_cache"
        ) from error
    return target


def _record(folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    lines = [f"{file.stat().st_size} {file.relative_to(folder)}\n" for file in files]
    (folder / RECORD).write_text("".join(lines), encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    """Whether ``folder`` has all files that it was published with."""
    try:
        lines = (folder / RECORD).read_text(encoding="utf-8").splitlines()
        sizes = (line.split(" ", 1) for line in lines)
        return all((folder / name).stat().st_size == int(size) for size, name in sizes)
    except (OSError, ValueError):
        return False


@contextmanager
def _only_builder(target: Path) -> Iterator[None]:
    """Wait until no other process builds ``target``. The kernel releases the lock of a process that ends."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file = target.with_name(f".{target.name}.lock")
    with file.open("w") as handle:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(handle, fcntl.LOCK_EX)  # unlike flock, also between machines on NFS
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _related(first: Path, second: Path) -> bool:
    """Whether one of the paths is the other or lies inside it."""
    return first.is_relative_to(second) or second.is_relative_to(first)


def cache_folder(cache: str | None = None) -> Path:
    """``cache`` if given, else $LLM_NPU_CACHE, else llm_npu in the user's cache folder (XDG)."""
    chosen = cache or os.environ.get("LLM_NPU_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm_npu"


def mapped_arrays(
    folder: Path, kinds: Mapping[str, tuple[type, int]], are_consistent: Callable[..., bool]
) -> list[np.ndarray]:
    """The arrays ``name``.npy of ``kinds``, {name: (dtype, dimensions)}, in this order, memory-mapped.

    A cache may be shared, or truncated by a full disk: UserError if an array is missing or of another kind,
    and if ``are_consistent(*arrays)`` is false.
    """
    try:
        arrays = [np.lib.format.open_memmap(folder / f"{name}.npy", mode="r") for name in kinds]
        if [(array.dtype, array.ndim) for array in arrays] != [*kinds.values()]:
            raise UserError("they have other dtypes")
        if not are_consistent(*arrays):
            raise UserError("their sizes do not match")
    except Exception as error:  # numpy evaluates the header as Python and passes on whatever that raises
        raise UserError(
            f"the arrays in {folder} are damaged ({error}); delete the folder to rebuild it"
        ) from None
    return arrays
