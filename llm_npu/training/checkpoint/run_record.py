"""``run.json``: the settings of the run that wrote a checkpoint (``llm_npu.training.resume.settings``)."""

from __future__ import annotations

from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

FILE = "run.json"


def write(settings: dict[str, dict], folder: Path) -> None:
    """Add ``run.json`` to the files of a checkpoint."""
    (folder / FILE).write_text(strict_json.dumps(settings, indent=1) + "\n")


def mesh_of(folder: Path) -> dict[str, int]:
    """The mesh of the run that wrote ``folder``, a checkpoint."""
    return read(folder)["mesh"]


def read(folder: Path) -> dict[str, dict]:
    """The settings of the run that wrote the checkpoint ``folder``. UserError if they are missing."""
    try:
        found = plain_json.mapping(folder / FILE)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {FILE}, the settings of the run that wrote it; resume from a checkpoint that "
            "has one."
        ) from None
    if not all(isinstance(found.get(part), dict) for part in ("fixed", "schedule", "mesh")):
        raise UserError(f"{folder / FILE} must hold fixed, schedule and mesh.")
    return found
