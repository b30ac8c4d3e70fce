"""Runs a command in one process, or on each rank of ``--nproc``. Importing it imports no framework."""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_npu import config, device, launch
from llm_npu.commands import PROGRAM
from llm_npu.core import console
from llm_npu.core.errors import UserError
from llm_npu.doctor import explain
from llm_npu.inference.mesh import Mesh
from llm_npu.models import library


def run(name: str, argv: Sequence[str], wanted: str, nproc: int, work: Callable[[device.Device], int]) -> int:
    """Run ``work(device)`` in this process, or the command ``name argv`` on ``nproc`` ranks: the exit code.

    Args:
        wanted: the value of ``--device``.
    """
    chosen = device.select(wanted)  # the device determines Paddle's plugin
    early = config.Early(argv=tuple(argv), device=wanted, nproc=nproc, is_rank=config.process_count() > 1)
    if early.starts_ranks:
        return _start(name, early, chosen)
    launch.prepare_rank(early, chosen)
    with launch.watch_machines():
        return work(chosen)


def _start(name: str, early: config.Early, chosen: device.Device) -> int:
    """Start the ranks; logs of failed ranks are kept in a temporary folder."""
    folder = tempfile.mkdtemp(prefix=f"{name}-")
    early = dataclasses.replace(early, output_dir=Path(folder))
    code = launch.start([PROGRAM, name], early, chosen, explain.of_rank)
    if code in (0, 2):
        shutil.rmtree(folder)
    return code


def import_and_join(chosen: device.Device, mesh: Mesh) -> None:
    """Import Paddle and the library with patches, set the device, and join the ranks of ``mesh``."""
    console.import_frameworks(library.installed())
    import paddle

    from llm_npu import patches

    patches.apply()
    paddle.set_device(chosen.name)
    if mesh.ranks > 1:
        mesh.join()
    console.say(f"device {chosen.name} ({chosen.kind}): {chosen.reason}")


def check_processes(mesh: Mesh, nproc: int) -> None:
    """Raise UserError if the degrees of ``mesh`` do not match the number of processes."""
    processes = max(nproc, config.process_count())
    if mesh.ranks != processes:
        raise UserError(
            f"--tensor_parallel_degree {mesh.tensor} times --pipeline_parallel_degree {mesh.pipeline} is "
            f"{mesh.ranks}, but there are {processes} processes; set --nproc {mesh.ranks}, or other degrees"
        )


def positive(text: str) -> int:
    """Argparse type of positive integers; argparse adds the option and the text to errors."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number
