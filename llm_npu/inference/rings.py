"""The communicators of exported programs, which know them by numbers."""

from __future__ import annotations

from pathlib import Path

import paddle.distributed as dist
from paddle.distributed.auto_parallel.static import process_group

from llm_npu.patches import auto_parallel


def join(folder: Path, about: dict) -> Path:
    """Set up the communication of this rank's program in ``folder``, and return the program's folder.

    ``about``: the record of the export.
    """
    auto_parallel.apply()
    dist.init_parallel_env()
    for ring in about["rings"]:
        process_group.new_process_group(list(range(about["ranks"])), group_id=ring).instantiate()
    return folder / of_rank(dist.get_rank())


def of_rank(rank: int) -> str:
    """The name of the folder of a rank's program."""
    return f"rank-{rank}"
