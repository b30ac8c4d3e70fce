"""What must be known of a run before Paddle may be imported: read once, before its arguments are parsed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.errors import UserError
from paddle_fused import virtual_npu

from .argument_file import split_file
from .device_flag import DEFAULT, checked
from .profile import FOLDER

OUTPUT_DIR = "output"
FALSE = ("false", "no", "f", "n", "0")  # as PaddleNLP's parser reads a switch; a bare flag is true


@dataclass(frozen=True)
class Early:
    """What decides which plugin Paddle loads, which processes there are, and what the environment must hold.

    ``argv``: the arguments as they came, without the program's name. ``device``: as asked
    (``llm_npu.config.device_flag``). ``nproc``: processes to start on this machine; ``is_rank``: this process
    is one of several already. ``profile_dir``: where ``--profile`` writes. ``dry``: nothing is computed
    (VIRTUAL_NPU_DRY).
    """

    argv: tuple[str, ...]
    device: str = DEFAULT
    nproc: int = 1
    max_restarts: int = 0
    output_dir: Path = Path(OUTPUT_DIR)
    profile_dir: Path | None = None
    deterministic: bool = False
    is_rank: bool = False
    dry: bool = False

    @classmethod
    def read(cls, argv: Sequence[str]) -> Early:
        """From the flags in ``argv``, else their file, and from the environment. ValueError for a
        device that is unknown, and for what is no count."""
        given = _given(argv)
        output_dir = Path(str(given.get("output_dir", OUTPUT_DIR))).expanduser()
        return cls(
            argv=tuple(argv),
            device=checked(given.get("device", DEFAULT)),
            nproc=_count(given, "nproc", "the number of processes to start", 1),
            max_restarts=_count(
                given, "max_restarts", "how often the run may start again when a rank has failed", 0
            ),
            output_dir=output_dir,
            profile_dir=output_dir / FOLDER if given.get("profile") else None,
            deterministic=str(given.get("deterministic", False)).lower() not in FALSE,
            is_rank=process_count() > 1,
            dry=virtual_npu.is_dry(),
        )

    @property
    def starts_ranks(self) -> bool:
        """Whether this process is to start others, which do the work."""
        return self.nproc > 1 and not self.is_rank


def process_count() -> int:
    """How many processes a launcher says that this run has; 1 without a launcher."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM") or 1)


def _given(argv: Sequence[str]) -> dict[str, object]:
    """{argument: value} of the flags in ``argv`` and of their file; what follows a bare flag is its value."""
    found, flags = split_file(argv)
    for position, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name.startswith("--"):
            following = flags[position + 1] if position + 1 < len(flags) else ""
            found[name[2:]] = value if equals else following
    return found


def _count(given: Mapping[str, object], name: str, what: str, lowest: int) -> int:
    """The whole number given for ``name``; ``lowest`` if there is none."""
    found = given.get(name, lowest)
    if isinstance(found, bool) or not str(found).isascii() or not str(found).isdigit() or int(found) < lowest:
        raise UserError(f"--{name} is {found}; give {what}, {lowest} or more")
    return int(found)
