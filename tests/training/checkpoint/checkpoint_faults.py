"""A program of two ranks: what one rank cannot write, and what somebody has damaged.

checkpoint_faults.py FOLDER
"""

import contextlib
import resource
import sys
from pathlib import Path

import virtual_npu

virtual_npu.activate()

import paddle  # noqa: E402
import paddle.distributed as distributed  # noqa: E402
import ranks as launcher  # noqa: E402

from llm_npu.core.ranks import Ranks  # noqa: E402
from llm_npu.training import checkpoint  # noqa: E402
from llm_npu.training.checkpoint import saving, tensors  # noqa: E402


@contextlib.contextmanager
def files_of_at_most(size: int):
    """The kernel refuses to let this process write beyond the first ``size`` bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full_disk(folder: Path) -> None:
    Path("/dev/full").write_bytes(b"no room")


def raised(action) -> str:
    try:
        action()
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def left(output: Path) -> list[str]:
    return sorted(file.name for file in output.iterdir())


def main() -> None:
    folder = Path(sys.argv[1])
    output = folder / "output"
    distributed.init_parallel_env()
    ranks = Ranks.of_run()
    # tensors of its own on each rank: both have something to write
    own = {f"rank{ranks.rank}.{name}": paddle.ones([256, 300]) * ranks.rank for name in "ab"}
    held = {"model": tensors.of_parameters(own, None)}
    here = saving.Checkpoints(output, ranks)
    behind = saving.Checkpoints(output, ranks, async_save=True)
    here.save(1, held)
    results = {}

    def limited(rank: int):
        return files_of_at_most(1 << 16) if ranks.rank == rank else contextlib.nullcontext()

    for name, writes in (("here", here), ("behind", behind)):
        for rank in (0, 1):
            with limited(rank):
                error = raised(lambda writes=writes: (writes.save(2, held), writes.finish()))
            ranks.gather(None)
            results[f"{name}, limit of rank {rank}"] = [error, left(output)]
        files = {"rng_state.pth": full_disk} if ranks.rank == 1 else {}
        error = raised(
            lambda writes=writes, files=files: (writes.save(2, held, own_files=files), writes.finish())
        )
        ranks.gather(None)
        results[f"{name}, full disk of rank 1"] = [error, left(output)]

    odd = {"odd": paddle.ones([2 + ranks.rank])}
    results["other shapes"] = [
        raised(lambda: here.save(2, {"model": tensors.of_parameters(odd, None)})),
        left(output),
    ]

    here.save(3, held)
    for damage in ("flipped", "cut off"):
        if ranks.first:
            file = output / "checkpoint-3/model.safetensors"
            content = bytearray(file.read_bytes())
            content[-5] ^= 4
            file.write_bytes(content if damage == "flipped" else content[:-1])
        ranks.gather(None)
        notes = []
        chosen = checkpoint.to_resume(True, output, ranks, notes.append)
        by_name = raised(lambda: checkpoint.to_resume(str(output / "checkpoint-3"), output, ranks))
        results[damage] = [chosen.name, notes, by_name]
    here.save(4, held)  # all is well again
    results["end"] = left(output)
    launcher.write(results)


if __name__ == "__main__":
    main()
