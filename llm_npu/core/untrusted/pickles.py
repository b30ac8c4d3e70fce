"""Pickles, which ``paddle.save`` and ``torch.save`` write, are refused: reading one may run any code."""

from __future__ import annotations

from pathlib import Path

ENDINGS = (".pdparams", ".pdopt", ".pdstates", ".pth", ".pt")
OF_TRANSFORMERS = "pytorch_model*.bin"
REASON = "is a pickle, which may run any code when it is read, and is not read"
WEIGHTS = (
    "load it in the program that wrote it and save it as safetensors there (PaddleNLP: "
    "save_pretrained(FOLDER, safe_serialization=True))"
)


def first(folder: str | Path) -> Path | None:
    """The first pickle in ``folder``, by name, or None."""
    folder = Path(folder)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((file for file in files if file.suffix in ENDINGS or file.match(OF_TRANSFORMERS)), None)
