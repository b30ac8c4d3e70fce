"""Checkpoints of a few small files, for tests about folders."""

from collections.abc import Callable, Mapping
from pathlib import Path

from llm_npu.training import checkpoint
from llm_npu.training.checkpoint.saving import Checkpoints


def store(output_dir: Path, step: int, files: Mapping[str, str | bytes]) -> Path:
    """The complete checkpoint of ``step`` with these contents of files."""
    Checkpoints(output_dir).save(step, {}, {name: _writer(name, files[name]) for name in files})
    return checkpoint.path_of(output_dir, step)


def _writer(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)
