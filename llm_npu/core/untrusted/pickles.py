"""Pickles, as written by ``paddle.save`` and ``torch.save``, are rejected: loading one can run any code."""

from __future__ import annotations

from pathlib import Path

ENDINGS = (".pdparams", ".pdopt", ".pdstates", ".pth", ".pt")
OF_TRANSFORMERS = "pytorch_model*.bin"
REASON = "is a pickle, which can run any code when loaded; it is not loaded"
WEIGHTS = (
    "load it in the program that wrote it and save it as safetensors there (PaddleNLP: "
    "save_pretrained(FOLDER, safe_serialization=True))"
)


def first(folder: str | Path) -> Path | None:
    """The first pickle in ``folder`` in order of names, or None."""
    folder = Path(folder)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((file for file in files if file.suffix in ENDINGS or file.match(OF_TRANSFORMERS)), None)
