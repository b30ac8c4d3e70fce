"""Settings of a run that are needed before Paddle is imported."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core import machines

from .formats import PROFILE_FOLDER

OUTPUT_DIR = "output"


@dataclass(frozen=True)
class Early:
    """The arguments that determine Paddle's plugin, the processes to start, and the environment.

    Attributes:
        argv: the command line, without the program's name.
        device: ``--device``.
        check_device: ``--check_device``.
        nproc: the number of processes to start on this machine.
        profile_dir: the folder of ``--profile``.
        is_rank: whether a launcher has started this process.
    """

    argv: tuple[str, ...]
    device: str = "npu"
    check_device: str | None = None
    nproc: int = 1
    max_restarts: int = 0
    output_dir: Path = Path(OUTPUT_DIR)
    profile_dir: Path | None = None
    deterministic: bool = False
    is_rank: bool = False

    @classmethod
    def of(cls, argv: Sequence[str], run: Namespace) -> Early:
        """Create from the flags ``run`` (parsed from ``argv``) and the environment."""
        output_dir = Path(run.output_dir).expanduser()
        return cls(
            argv=tuple(argv),
            device=run.device,
            check_device=run.check_device,
            nproc=run.nproc or 1,
            max_restarts=run.max_restarts,
            output_dir=output_dir,
            profile_dir=output_dir / PROFILE_FOLDER if run.profile else None,
            deterministic=run.deterministic,
            is_rank=process_count() > 1,
        )

    @property
    def starts_ranks(self) -> bool:
        """Whether this process starts the ranks instead of training."""
        return self.nproc > 1 and not self.is_rank


def process_count() -> int:
    """The number of processes of this run, from the launcher; 1 without a launcher."""
    return machines.check()
