"""What each rank finds: ``program.py FOLDER PART...``."""

from __future__ import annotations

import sys

import paddle
import ranks
from paddle.distributed import fleet

from programs import errors, layers, operators, placements, planning


def main(parts: list[str]) -> None:
    strategy = fleet.DistributedStrategy()
    world = paddle.distributed.ParallelEnv().world_size
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": world, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    report = {}
    if "operators" in parts:
        report["operators"] = operators.examine(group)
        report["three dimensions"] = operators.three_dimensions(group)
        report["mixed precision"] = operators.mixed_precision(group)
        report["kept outputs"] = operators.kept_outputs(group)
    if "planning" in parts:
        report["planning"] = planning.examine(group)
    if "groups that share a rank" in parts:
        report["groups that share a rank"] = planning.groups_that_share_a_rank()
    if "layers" in parts:
        report["layers"] = layers.examine(group)
    if "placements" in parts:
        report["placements"] = placements.examine(group)
    if "errors" in parts:
        report["errors"] = errors.examine(group)
    ranks.write(report)


main(sys.argv[2:])
