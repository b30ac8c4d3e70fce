"""A program of four ranks, each a machine or two machines of two, that look for the disks they have.

disks_of_ranks.py FOLDER
"""

import os
import sys
from pathlib import Path

import virtual_npu

virtual_npu.activate()

import paddle  # noqa: E402
import paddle.distributed as distributed  # noqa: E402
import ranks as launcher  # noqa: E402

from llm_npu.core.ranks import Ranks  # noqa: E402
from llm_npu.training import checkpoint  # noqa: E402
from llm_npu.training.checkpoint import gathering, saving, tensors  # noqa: E402
from llm_npu.training.checkpoint.disks import Disks  # noqa: E402


def on_machines(*addresses: str) -> None:
    """The ranks are on these machines from now on."""
    os.environ["PADDLE_TRAINER_ENDPOINTS"] = ",".join(f"{address}:1" for address in addresses)


def refusal(action) -> str:
    try:
        action()
    except ValueError as error:
        return str(error)
    return "nothing"


def main() -> None:
    folder = Path(sys.argv[1])
    distributed.init_parallel_env()
    ranks = Ranks.of_run()
    on_machines("a", "a", "a", "a")
    results = {"one machine": Disks.of(folder / "none", ranks).of_rank}
    on_machines("a", "b", "c", "d")
    disk = folder / ("own" if ranks.rank == 2 else "shared") / "out"
    disks = Disks.of(disk, ranks)
    results["the third has its own"] = disks.of_rank
    ranks.gather(None)  # all have removed their entries
    results["left"] = [file.name for file in disk.iterdir()]
    results["nowhere"] = [Disks.to_read(folder / "none", ranks).of_rank, (folder / "none").exists()]
    on_machines("a", "a", "b", "b")
    results["ranks of a machine"] = refusal(lambda: Disks.of(disk, ranks))

    on_machines("a", "b", "c", "d")
    values = {f"rank{ranks.rank}.a": paddle.full([3, 5], ranks.rank, "float32")}
    held = {"model": tensors.of_parameters(values, None)}
    saving.Checkpoints(disk, ranks, disks=disks).save(7, held)
    results["parts"] = sorted(file.name for file in (disk / "checkpoint-7").iterdir())
    # as after a copy of the checkpoint of every disk to another place
    (folder / str(ranks.rank)).mkdir()
    ranks.gather(None)  # all have listed the files
    place = folder / ("0" if ranks.rank != 2 else "2") / "copied"
    if disks.first:
        (disk / "checkpoint-7").rename(place)
    whole = gathering.to_resume(str(place), disk, disks)
    results["gathered"] = [str(whole.relative_to(folder)), checkpoint.verify(whole)]
    names = sorted(file.name for file in whole.iterdir())
    ranks.gather(None)  # all have read before one damages it
    if ranks.rank == 2:
        (whole / "model.safetensors").write_bytes(b"damaged")
    ranks.gather(None)
    results["repaired"] = [gathering.to_resume(str(place), disk, disks) == place, checkpoint.verify(place)]
    ranks.gather(None)
    if disks.first:
        (whole / "model.safetensors").write_bytes(b"damaged")
    ranks.gather(None)
    results["lost"] = refusal(lambda: gathering.to_resume(str(place), disk, disks))
    results["nothing there"] = refusal(lambda: gathering.to_resume(True, disk, disks))
    results["from step 0"] = gathering.to_resume("auto", disk, disks) is None
    launcher.write(results | {"names": names})


if __name__ == "__main__":
    main()
