"""One of several ranks: runs scripts/run_llama_npu.py several times, from each other's checkpoints.

    resumed_runs.py FOLDER RUNS ARGUMENTS...

RUNS is JSON: [[output_dir, checkpoint or null, flags], ...]. The checkpoint is copied into the output folder;
the output folder of an earlier run stands for its first checkpoint.
"""

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import ranks
from hybrid_parallel.many_runs import forget_groups

from llm_npu.commands import train
from llm_npu.training import checkpoint


def main(runs: list, arguments: list[str]) -> None:
    run, rank = train.main, int(os.environ["PADDLE_TRAINER_ID"])
    for number, (output_dir, start, flags) in enumerate(runs):
        print(f"==== {output_dir}", flush=True)
        argv = [*arguments, *flags.split(), "--output_dir", output_dir]
        if number:
            forget_groups(same_method=True)
        try:
            if start is not None:
                earlier = checkpoint.complete(start)
                start = earlier[0] if earlier else start
                target = Path(output_dir) / Path(start).name
                if rank == 0 and not target.exists():
                    shutil.copytree(start, target.with_suffix(".new"))
                    target.with_suffix(".new").rename(target)
                if number and int(os.environ["PADDLE_TRAINERS_NUM"]) > 1:  # there is somebody to wait for
                    import paddle.distributed as distributed

                    distributed.barrier()
                argv.append("--resume_from_checkpoint")
            assert run(argv) == 0
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the other ranks, somewhere in this run, learn at once that this one is gone
    ranks.write({})


main(json.loads(sys.argv[2]), sys.argv[3:])
