"""The cache folder: trained tokenizers and tokenized text."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError

from .atomic import publish, remove, unfinished

RECORD = ".files"  # in each cached folder: the sizes and names of its files


def cached(name: str, build: Callable[[Path], None], cache: str | None = None) -> Path:
    """The cache folder ``name``. If it is missing or incomplete, ``build(folder)`` fills it.

    A cached folder can be incomplete because cleaners of temporary files may delete only its files.

    ``name`` must contain a hash of everything that the content depends on. One process builds while others
    that need the folder, such as other ranks of the machine, wait. On file systems without locks every
    process builds, and the first to finish wins. A process that is killed while building leaves no folder.

    Raises:
        UserError: The cache is not writable.
        OSError: ``build`` failed on a file outside the cache.
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
            "choose another with LLM_NPU_CACHE or --data_cache"
        ) from error
    return target


def _record(folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    lines = [f"{file.stat().st_size} {file.relative_to(folder)}\n" for file in files]
    (folder / RECORD).write_text("".join(lines), encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    """Whether ``folder`` still has all the files it was published with."""
    try:
        lines = (folder / RECORD).read_text(encoding="utf-8").splitlines()
        sizes = (line.split(" ", 1) for line in lines)
        return all((folder / name).stat().st_size == int(size) for size, name in sizes)
    except (OSError, ValueError):
        return False


@contextmanager
def _only_builder(target: Path) -> Iterator[None]:
    """Wait until no other process builds ``target``. The kernel releases the lock when a process exits."""
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
    """Whether the paths are equal or one is inside the other."""
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
    """Memory-map the arrays ``name``.npy of ``kinds``, {name: (dtype, dimensions)}, in this order.

    Raises UserError if an array is missing, has another dtype or rank, or if ``are_consistent(*arrays)`` is
    false: a cache may be shared with other users, or truncated by a full disk.
    """
    try:
        arrays = [np.lib.format.open_memmap(folder / f"{name}.npy", mode="r") for name in kinds]
        if [(array.dtype, array.ndim) for array in arrays] != [*kinds.values()]:
            raise UserError("unexpected dtypes or ranks")
        if not are_consistent(*arrays):
            raise UserError("inconsistent sizes")
    except Exception as error:  # numpy evaluates the header as Python, which can raise anything
        raise UserError(
            f"the arrays in {folder} are damaged ({error}); delete the folder to rebuild it"
        ) from None
    return arrays
