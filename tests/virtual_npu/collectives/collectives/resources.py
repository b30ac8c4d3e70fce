"""What communication takes from the operating system: ``resources.py FOLDER``, on two ranks.

Each rank writes FOLDER/<rank>.json: how its stream's thread is scheduled, and how many descriptors of shared
memory are open after groups that cannot be made, beyond those before.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import paddle
import paddle.distributed as dist
import ranks

GROUPS = 3
POLICIES = {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo"}


def policies() -> list[str]:
    """Of the threads of streams."""
    tasks = [
        task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "npu-stream\n"
    ]
    return [POLICIES[os.sched_getscheduler(int(task.name)) & ~os.SCHED_RESET_ON_FORK] for task in tasks]


def segments() -> int:
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("memfd:virtual_npu" in link for link in links)


def failing(group) -> str:
    """The error of a group whose shared memory is larger than any file of this process may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        dist.all_reduce(paddle.ones([2]), group=group)
    except Exception as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return ""


def main() -> None:
    dist.init_parallel_env()
    dist.all_reduce(paddle.ones([2]), sync_op=False).wait()
    paddle.device.synchronize()
    groups = [dist.new_group([0, 1]) for _ in range(GROUPS)]
    before = segments()
    errors = [failing(group) for group in groups]
    ranks.write({"policies": policies(), "errors": errors, "opened": segments() - before})


if __name__ == "__main__":
    main()
