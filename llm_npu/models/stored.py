"""The arrays of safetensors files, read on access.

Uses the layout of Hugging Face checkpoints: one ``model.safetensors``, or several files and an index that
maps each array to its file. bfloat16 is uint16, as in Paddle's ``numpy()``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import paddle
from safetensors import SafetensorError, safe_open
from safetensors.paddle import save_file

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import pickles, plain_json
from llm_npu.core.untrusted.git_lfs import refuse_pointer
from llm_npu.patches import operators
from paddle_fused import strict_json

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PART = ".part-"  # in the names of files that hold parts of tensors
NO_MODELS = ("optimizer", "peft_model", "adapter_model")  # other files of a checkpoint in this format


class Stored(Mapping[str, np.ndarray]):
    """{name: array} of the safetensors files in ``folder``; ``files`` maps each file to its names.

    The index lists the files; without it, only ``model.safetensors`` is read; without either, all files
    except those of optimizers and LoRA. Raises UserError for a folder without such files, and for unreadable
    files.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        self._opened = {name: self._open(name) for name in self._names()}
        self.files = {name: list(file.keys()) for name, file in self._opened.items()}
        self._file_of = {name: file for file, names in self.files.items() for name in names}

    def __getitem__(self, name: str) -> np.ndarray:
        with operators.as_numbers():
            return self._opened[self._file_of[name]].get_tensor(name).numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def _names(self) -> list[str]:
        index = self._folder / INDEX
        if index.is_file():
            try:
                names = sorted(set(plain_json.mapping(index)["weight_map"].values()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{index} cannot be read: {error!r}") from None
            for name in names:
                if not isinstance(name, str) or name == ".." or Path(name).name != name:
                    raise UserError(f"{index} names {name!r:.80}, which is not a file next to it")
            return names
        if (self._folder / FILE).is_file():
            return [FILE]
        files = sorted(file.name for file in self._folder.glob("*.safetensors"))
        files = [name for name in files if not name.startswith(NO_MODELS)]
        if any(PART in name for name in files):
            raise UserError(
                f"{self._folder} contains one machine's part of a checkpoint; merge the parts of all "
                "machines with llm-npu merge_checkpoint"
            )
        if not files:
            if pickle := pickles.first(self._folder):
                raise UserError(f"{pickle} {pickles.REASON}; {pickles.WEIGHTS}")
            raise UserError(
                f"{self._folder} holds no .safetensors file; pass a folder with a model in that format"
            )
        return files

    def _open(self, name: str):
        file = self._folder / name
        refuse_pointer(file)
        try:
            return safe_open(str(file), framework="paddle", device="cpu")
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} cannot be read as safetensors: {error}") from None


def write(
    arrays: Mapping[str, np.ndarray],
    folder: Path,
    files: Mapping[str, list[str]] | None = None,
) -> None:
    """Write ``arrays`` to ``files``, {file: names}, and an index if there are several files.

    Without ``files``, all arrays are written to ``model.safetensors``.
    """
    files = {FILE: list(arrays)} if files is None else {file: names for file, names in files.items() if names}
    size = 0
    for file, names in files.items():
        copies = {name: np.ascontiguousarray(arrays[name]) for name in names}
        size += sum(array.nbytes for array in copies.values())
        tensors = {name: paddle.to_tensor(array, place=paddle.CPUPlace()) for name, array in copies.items()}
        save_file(tensors, str(folder / file), metadata={"format": "pt"})  # pt is the layout, not the writer
    if len(files) > 1:
        places = {name: file for file, names in files.items() for name in names}
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / INDEX).write_text(strict_json.dumps(index, indent=2, sort_keys=True) + "\n")
