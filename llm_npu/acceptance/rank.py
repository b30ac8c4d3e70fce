"""Checks that need several cards; the trainer's launcher starts this file on every card.

``rank.py --nproc N --what CHECKS --job DIR`` runs as one of several ranks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from llm_npu import device, launch
from llm_npu.acceptance.checks import Job
from llm_npu.acceptance.journal import Journal
from llm_npu.config import Early

TAIL = 4000  # characters of a rank's log
RENDEZVOUS = "rendezvous of the ranks"


def collectives(job: Job, journal: Journal) -> None:
    _start(job, journal, "collectives")


def mc2(job: Job, journal: Journal) -> None:
    _start(job, journal, "mc2")


def overlap(job: Job, journal: Journal) -> None:
    _start(job, journal, "overlap")


def ring(job: Job, journal: Journal) -> None:
    _start(job, journal, "ring")


def _start(job: Job, journal: Journal, what: str) -> None:
    """Run the check on all ranks. If a rank fails, exit with its exit code."""
    chosen = device.select(job.device_name)
    journal.note("cards", str(job.ranks))
    arguments = ("--nproc", str(job.ranks), "--what", what, "--job", str(job.folder))
    early = Early(arguments, nproc=job.ranks, output_dir=job.folder / "out")
    code = launch.start([__file__], early, chosen)
    for log in sorted((job.folder / "out" / "log").glob("workerlog.*")):
        print(f"---- {log.name}\n{log.read_text(errors='replace')[-TAIL:]}", flush=True)
    if code:
        os._exit(code)


def main(argv: list[str]) -> None:
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    folder = Path(options["--job"])
    journal = Journal(folder, int(os.environ["PADDLE_TRAINER_ID"]))
    journal.begin(RENDEZVOUS)
    chosen = device.select(Job.read(folder / "job.json").device_name)
    launch.prepare_rank(Early(tuple(argv), nproc=int(options["--nproc"]), is_rank=True), chosen)
    from llm_npu import patches
    from llm_npu.core import console
    from llm_npu.models import library

    console.import_frameworks(library.installed())
    patches.apply()
    import paddle
    from paddle.distributed import fleet

    paddle.set_device(chosen.name)
    strategy = fleet.DistributedStrategy()
    ranks = paddle.distributed.ParallelEnv().world_size
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": ranks, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    journal.end(RENDEZVOUS)
    from llm_npu.acceptance import rank_checks

    getattr(rank_checks, options["--what"])(group, journal)


if __name__ == "__main__":
    main(sys.argv[1:])
