"""Whole tensors from the files of parts that several disks have.

The result has the files, byte for byte, that a run on one shared disk would have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.tensor_file import DTYPES, Reader, Writer, places
from llm_npu.training.checkpoint.write_plan import create_files, in_files, kind_of_part, read_piece, wholes

_DTYPE = {np.dtype(kind): name for name, (_, kind) in DTYPES.items()}

# {name of a part: its dtype, by Paddle's name, and its shape}
Contents = Mapping[str, tuple[str, tuple[int, ...]]]


def contents(file: Path) -> Contents:
    """What is in a file of parts. UserError if it cannot be read."""
    return {name: (_DTYPE[slot.dtype], slot.shape) for name, slot in places(file).items()}


class Assembly:
    """Files of whole tensors in ``folder``, created here and filled with one file of parts after another.

    ``of_files``: {file of parts: its contents}. UserError unless the parts are every tensor exactly once. A
    context, which closes the files.
    """

    def __init__(self, folder: Path, of_files: Mapping[str, Contents]):
        held = {}
        for file, found in of_files.items():
            for piece, (dtype, extent) in found.items():
                name, shape, offset, box = read_piece(piece)
                if box != extent:
                    raise UserError(f"{file}: {piece} has the shape {list(extent)}")
                held[kind_of_part(file), name, dtype, shape, offset, extent] = [0]
        kinds, whole = {kind_of_part(file) for file in of_files}, wholes(held)
        files = {kind: in_files(kind, whole.get(kind, {})) for kind in sorted(kinds)}
        create_files(folder, {file: of for each in files.values() for file, of in each.items()}, files)
        self._file_of = {
            (kind, name): file for kind in files for file, of in files[kind].items() for name in of
        }
        self._folder, self._stack, self._writers = folder, ExitStack(), {}

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """Flush the files."""
        self._stack.close()

    def add(self, name: str, file: Path) -> None:
        """Write the parts in ``file``, which is the file of parts ``name``."""
        for piece, array in Reader([file]).items():
            whole, _, offset, _ = read_piece(piece)
            self._writer(self._file_of[kind_of_part(name), whole]).write(whole, offset, array)

    def _writer(self, file: str) -> Writer:
        if file not in self._writers:
            self._writers[file] = Writer(self._folder / file)
            self._stack.callback(self._writers[file].close)
        return self._writers[file]
