"""The process that ``without_run`` starts on each machine. Its result is a file beside its log."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from llm_npu.cluster import differences, facts
from llm_npu.core import machines
from llm_npu.doctor import Setup
from llm_npu.doctor import rank_table as tables

SAID = "said"
TIMEOUT = 60  # seconds that one machine waits for another


def main(device: str, output_dir: str, root: str, logs: str, rank_table: str = "") -> int:
    here = machines.read()
    setup = Setup(os.environ, device_name=device, output_dir=Path(output_dir), root=Path(root))
    own = facts.gather(setup, {})
    told = _exchanged(here.rank, len(here.all), own)
    by_name = differences.by_name(here.all, told)
    table = differences.table(by_name)
    said = f"these machines differ:\n{table}" if table else differences.note(by_name)
    if here.rank > 0 and table:
        said = f"these machines differ; the table is on {here.all[0].address}"
    problems = []
    if rank_table and not table:
        servers = {machine.address: each.cards for machine, each in zip(here.all, told, strict=True)}
        problems = tables.write(Path(rank_table), servers)
        said += f"\n{_of_rank_table(rank_table, problems)}"
    Path(logs, SAID).write_text(said, encoding="utf-8", errors="backslashreplace")
    return 2 if table or problems else 0


def _of_rank_table(file: str, problems: list[str]) -> str:
    if problems:
        fix = f"set the addresses by `hccn_tool -i DEVICE -ip -s address A netmask M` (/{tables.HCCN})"
        return f"error: no rank table was written, since {problems[0]}; {fix}."
    return "{1} ranks on {0} servers are in {2}".format(*tables.counts(file), file)


def _exchanged(rank: int, count: int, own: facts.Facts) -> list[facts.Facts]:
    """The facts of all, by Paddle's store, which ends with rank 0."""
    from paddle.base import core

    host, _, port = os.environ["PADDLE_MASTER"].rpartition(":")
    store = core.TCPStore(host, int(port), rank == 0, count, timeout=TIMEOUT)

    def of_all(what: str) -> list[bytes]:
        return [store.get(f"{what}{other}") for other in range(count)]

    store.set(f"here{rank}", "1")
    of_all("here")  # the clocks are read at one moment
    store.set(f"facts{rank}", json.dumps(asdict(own.now())))
    told = of_all("facts")
    store.set(f"done{rank}", "1")
    if rank == 0:
        of_all("done")
    return [facts.Facts(**json.loads(text)) for text in told]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
