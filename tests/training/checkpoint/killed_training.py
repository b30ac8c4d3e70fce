"""A program of two ranks that may be killed at any moment: it trains, stores every step, and resumes.

    killed_training.py FOLDER STEPS OUTPUT [behind] [apart | swapped] [commit | confirm]

With "apart", each rank is a machine with the disk OUTPUT/<rank>; with "swapped", with that of the other one.
"commit" kills rank 0 before its disk is marked in step 2, "confirm" rank 1 before its own is, after rank 0's.
Rank 0 appends {"step", "loss"} of every step to OUTPUT/losses.jsonl, the loss as float.hex(). "resumed" in
its findings is the step that the run began at.
"""

import json
import os
import signal
import sys
from pathlib import Path

import virtual_npu

virtual_npu.activate()

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import paddle.distributed as distributed  # noqa: E402
import ranks as launcher  # noqa: E402

from llm_npu.core.ranks import Ranks  # noqa: E402
from llm_npu.training.checkpoint import clear, gathering, saving, step_of, tensors  # noqa: E402
from llm_npu.training.checkpoint import folder as folders  # noqa: E402
from llm_npu.training.checkpoint.disks import Disks  # noqa: E402

WIDTH, ROWS = 384, 8


def dies_at(moment: str, final: int, step: int) -> None:
    """This process is killed when it calls the function ``moment`` of folders for the checkpoint of ``step``;
    the folder's name is the argument ``final``."""
    function = getattr(folders, moment)

    def killed(*arguments):
        if step_of(arguments[final]) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        function(*arguments)

    setattr(folders, moment, killed)


def main() -> None:
    folder, steps, output = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_parallel_env()
    ranks = Ranks.of_run()
    paddle.seed(7)
    layers = [paddle.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = paddle.nn.Sequential(*(sublayer for layer in layers for sublayer in (layer, paddle.nn.Tanh())))
    named = dict(model.named_parameters())
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())
    disk = output
    if "apart" in sys.argv or "swapped" in sys.argv:
        os.environ["PADDLE_TRAINER_ENDPOINTS"] = "127.0.0.1:1,127.0.0.2:1"
        disk = output / str(ranks.rank if "apart" in sys.argv else 1 - ranks.rank)
    if "commit" in sys.argv and ranks.rank == 0:
        dies_at("commit", 1, 2)
    if "confirm" in sys.argv and ranks.rank == 1:
        dies_at("confirm", 0, 2)
    disks = Disks.of(disk, ranks)
    checkpoints = saving.Checkpoints(disk, ranks, keep=2, async_save="behind" in sys.argv, disks=disks)
    begin = 0
    resumed = gathering.to_resume("auto", disk, disks)
    held = {
        "model": tensors.of_parameters(named, None),
        "optimizer": tensors.of_optimizer(optimizer, named, None),
    }
    if resumed is not None:
        begin = step_of(resumed)
        for kind in held:
            tensors.load(resumed, kind, held[kind])
    if disks.first:
        clear(disk, above=begin)
    (folder / f"started-{ranks.rank}").touch()
    for step in range(begin, steps):
        values = np.random.default_rng([step, ranks.rank]).standard_normal([ROWS, WIDTH]).astype("float32")
        loss = (model(paddle.to_tensor(values)) - 1).square().mean()
        loss.backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.clear_grad()
        if ranks.first:
            with (output / "losses.jsonl").open("a") as stream:
                stream.write(json.dumps({"step": step, "loss": float(loss).hex()}) + "\n")
        checkpoints.poll()
        checkpoints.save(step + 1, held)
    checkpoints.finish()
    launcher.write({"resumed": begin})


if __name__ == "__main__":
    main()
