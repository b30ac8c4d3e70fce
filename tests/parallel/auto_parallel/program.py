"""Runs every row and small programs in this process, one of two. program.py FOLDER

It writes FOLDER/<rank>.json.

The processes are on the CPU place. Gloo lacks all-to-all and reduce-scatter there: a tensor can be split, put
together and summed, but what is split along one dimension cannot become split along another, and a sum cannot
become split. No row needs that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import paddle
import paddle.distributed as dist

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "shared")]
from auto_parallel import static  # noqa: E402
from auto_parallel.rows import all_rows  # noqa: E402
from auto_parallel.rows_run import examined  # noqa: E402


def main(folder: str, seed: int) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
    rows = examined(all_rows(), mesh, "native", "float32")
    static.use_gloo_in_static_programs()
    trained = {split: static.train_split(split, mesh, seed) for split in static.SPLITS}
    others = [static.train_alone(seed, *other) for other in static.OTHER_ORDERS]
    written = {"rows": rows, "alone": static.train_alone(seed), "others": others, "split": trained}
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(written))


main(sys.argv[1], int(sys.argv[2]))
