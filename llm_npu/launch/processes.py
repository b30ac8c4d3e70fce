"""Starts several processes on this machine, one per device, with paddle.distributed.launch.

    python scripts/run_llama_npu.py --nproc 2 ...                                      # starts both
    python -m paddle.distributed.launch --devices 0,1 scripts/run_llama_npu.py ...     # is one of them

``--nproc`` prepares the processes with Paddle's launcher and supervises them itself
(``llm_npu.launch.supervisor``). Only rank 0 prints to the terminal; the others write to
``<output_dir>/log/workerlog.<rank>``. With ``--max_restarts`` all ranks restart after one fails.

Importing this module imports no framework.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import virtual_npu
from llm_npu.config import Early
from llm_npu.core import stopping
from llm_npu.core.errors import UserError
from llm_npu.core.refusal import Sentences
from llm_npu.device import Device, find_cards
from llm_npu.launch import fake_process_group, folder_lock, own_file
from llm_npu.launch.supervisor import Explainer, Supervisor

_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1  # <linux/prctl.h>
LOOPBACK = "127.0.0.1"  # for rank 0's store: no other machine connects to it
GLOO = (
    "--device cpu runs in one process: Paddle's gloo backend lacks subgroups, averages and 16-bit types, "
    "and trains some meshes wrongly without an error. Set --device npu or virtual_npu."
)


def prepare_rank(early: Early, device: Device) -> None:
    """Set this rank's environment before paddle is imported; no-op in a run with one process.

    Corrects the environment of a launcher that detected no device plugin and chose gloo. Raises UserError for
    the CPU, for a device with an id, and if ``--nproc`` contradicts the launcher.
    """
    if not early.is_rank:
        return
    if device.kind == "cpu":
        raise UserError(GLOO)
    local = int(os.environ.get("PADDLE_LOCAL_SIZE") or 1)
    if early.nproc not in (1, local):
        raise UserError(
            f"--nproc is {early.nproc}, but paddle.distributed.launch has started {local} processes here; "
            "remove --nproc, or start the script without the launcher"
        )
    _check(device, local)
    selected = os.environ.get("PADDLE_RANK_IN_NODE") or os.environ.get("PADDLE_LOCAL_RANK") or "0"
    os.environ.setdefault("FLAGS_selected_npus", selected)
    os.environ["PADDLE_DISTRI_BACKEND"], os.environ[virtual_npu.LAUNCHED_DEVICE] = "xccl", "npu"


def prepare_dry_run(device: Device) -> None:
    """In a dry run, emulate the other ranks; call it after paddle is imported."""
    if device.dry:
        fake_process_group.install()


def start(program: Sequence[str], early: Early, device: Device, *explained: Explainer) -> int:
    """Run ``program`` with the arguments of this run in ``--nproc`` processes; returns their exit code.

    ``program``: a Python file and the arguments before those of the run. The ranks inherit ``device``
    (``llm_npu.device.select``). If a rank fails or is lost, all ranks restart, up to ``--max_restarts``
    times. ``explained``: as for ``Supervisor``. Raises UserError for more processes than devices, for the
    CPU, and for a device with an id; ``stopping.Stopped`` if a signal arrives before a rank is started.
    """
    argv, count, output_dir = early.argv, early.nproc, early.output_dir
    if device.kind == "cpu":
        raise UserError(GLOO)
    if device.dry:
        stopping.unshield()  # the exception also ends the child process
        return fake_process_group.start([*program, *argv], count)[1]
    _check(device, count)
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"--output_dir is {output_dir}, which is a file; specify a folder")
    folder_lock.refuse_if_taken(
        output_dir
    )  # before that run's logs are overwritten; rank 0 acquires the lock
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    os.environ.setdefault("GLOG_minloglevel", "2")
    logs = output_dir / "log"
    own_file.check_folder(logs)
    for rank in range(1, count):
        own_file.check(logs / f"workerlog.{rank}")
    logs.mkdir(parents=True, exist_ok=True)
    restarts, supervisor = early.max_restarts, Supervisor(logs, *explained)
    stopping.shield()
    for restart in range(restarts + 1):
        controller = _controller([*program, *argv], count, supervisor, again=restart > 0)
        stopping.unshield()  # paddle is imported: from here on signals are forwarded to the ranks
        controller.build_job()
        controller.build_pod()
        if supervisor.received is not None:  # no rank was running yet to receive it
            raise stopping.Stopped(supervisor.received)
        with reserved_port(int(controller.pod.containers[0].env["PADDLE_MASTER"].rpartition(":")[2])):
            controller.deploy_pod()
            outcome = supervisor.until_end([container._proc for container in controller.pod.containers])
        if not outcome.by_fault or restart == restarts:
            break
        print(f"restart  {restart + 1} of {restarts}: restarting all ranks", file=sys.stderr, flush=True)
    return outcome.code


@contextlib.contextmanager
def reserved_port(port: int) -> Iterator[None]:
    """Reserve ``port`` on this host inside the block; OSError if another program already uses it.

    Paddle's launcher chooses a free port, on which rank 0 listens seconds later. Until then, a socket that
    does not listen is bound to the port. Paddle's store can still bind it, since both set SO_REUSEADDR.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("", port))
        yield


def _check(device: Device, count: int) -> None:
    if ":" in device.name:
        raise UserError(
            f"--device {device.name} selects one device, but {count} processes need one each; use npu, "
            "npu:card or virtual_npu"
        )
    if device.kind == "virtual" and not device.dry and count > virtual_npu.device_count():
        raise UserError(
            f"{count} processes need a device each, but there are {virtual_npu.device_count()} virtual NPUs; "
            "VIRTUAL_NPU_DEVICES sets their number, at most 16"
        )
    if device.kind == "card" and count > (cards := find_cards().count):
        raise UserError(
            f"{count} processes need a card each, but {cards} are visible (ASCEND_RT_VISIBLE_DEVICES)"
        )


def _controller(program: Sequence[str], count: int, supervisor: Supervisor, again: bool):
    """Paddle's controller of the processes; imports paddle. ``again``: append to the logs."""
    devices = ",".join(map(str, range(count)))
    options = f"--nproc_per_node {count} --devices {devices} --log_level ERROR"
    options += f" --log_overwrite {int(not again)}"
    before = sys.argv
    sys.argv = ["paddle.distributed.launch", *options.split(), "--enable_gpu_log", "0"]
    sys.argv += ["--log_dir", str(supervisor.logs), *program]
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in console.import_frameworks
            from paddle.distributed.launch.context import Context
            from paddle.distributed.launch.context.args_envs import env_args_mapping
            from paddle.distributed.launch.controllers.collective import CollectiveController

        class Controller(CollectiveController):
            def signal_handler(self, number, frame):
                supervisor.forward(number, frame)

            def new_container(self, *args, envs, **kwargs):
                container = super().new_container(*args, envs=envs, **kwargs)
                first = envs["PADDLE_TRAINER_ID"] == "0"
                container.start = functools.partial(_start, container, first, supervisor.refused)
                return container

            def save_pod_log(self, info):
                """No-op: Paddle writes the whole environment to a file, as in the next method."""

            def save_pod_env(self):
                pass

        # Paddle prefers variables over options: PADDLE_NNODES would make it wait for other machines.
        if ignored := [name for name in env_args_mapping if os.environ.pop(name, None) is not None]:
            print(f"note     --nproc ignores {', '.join(ignored)}", file=sys.stderr)
        context = Context(enable_plugin=False)
        context.node.ip = LOOPBACK  # otherwise the address of the hostname
        return Controller(context)
    finally:
        sys.argv = before


def _start(container, on_terminal: bool, refused: Sentences) -> None:
    """Replacement for a container's ``start``.

    The original gives every rank a log file, lets ranks outlive the launcher, and writes the environment,
    including keys and passwords, next to the logs.
    """
    with contextlib.ExitStack() as stack:
        out, err = sys.stdout, sys.stderr
        if not on_terminal:
            if container.log_mode == "w":  # hard links keep the old content
                Path(container.outfile).unlink(missing_ok=True)
            out = err = stack.enter_context(open(container.outfile, container.log_mode))
        container._proc = subprocess.Popen(
            container.entrypoint,
            env=container.env | refused.environment,
            stdout=out,
            stderr=err,
            pass_fds=[refused.descriptor],
            preexec_fn=_become_rank,
        )


def _become_rank() -> None:
    """In the child: start a new session, and receive SIGTERM when the launcher exits for any reason.

    Signals stay blocked until the rank's script listens (``llm_npu.core.stopping``).
    """
    stopping.hold_back()
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
