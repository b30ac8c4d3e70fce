"""Several processes on this machine, one for each device, by paddle.distributed.launch.

    python scripts/run_llama_npu.py --nproc 2 ...                                      # starts both
    python -m paddle.distributed.launch --devices 0,1 scripts/run_llama_npu.py ...     # is one of them

``--nproc`` uses Paddle's launcher as it is to prepare the processes; watching them differs in what a person
at the terminal notices. Rank 0 has the terminal to itself, the others write to
``<output_dir>/log/workerlog.<rank>``. A signal reaches each rank once, so that they save one checkpoint
together, and the exit code is theirs. When a rank fails, the others are ended, and the end of its log is
shown.

Importing this module imports no framework.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from llm_npu import config
from llm_npu.device import Device, find_card
from paddle_fused import virtual_npu

ENDING = 5.0  # seconds that the other ranks have to end by themselves when one has failed
SHOWN = 4000  # characters of a failed rank's log
BAD_INPUT = 2
GLOO = (
    "--device cpu trains in one process: Paddle's gloo, which would join several, lacks subgroups, averages "
    "and 16-bit types, and trains some meshes wrongly without a word. Give --device npu or virtual_npu."
)


def is_rank() -> bool:
    """Whether this process is one of several that a launcher has started."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) > 1


def join(argv: Sequence[str], device: Device) -> None:
    """Make this process, one of several, ready to meet the others; before paddle is imported.

    A launcher that saw no device plugin has prepared for gloo: its choice is put right. ValueError for the
    CPU, for a device that names one id, and when ``--nproc`` is another number than the launcher's.
    """
    if device.kind == "cpu":
        raise ValueError(GLOO)
    local, asked = int(os.environ.get("PADDLE_LOCAL_SIZE") or 1), config.nproc_from(argv)
    if asked not in (1, local):
        raise ValueError(
            f"--nproc is {asked}, but paddle.distributed.launch has started {local} processes here; "
            "leave --nproc out, or start the script without the launcher"
        )
    _check(device, local)
    selected = os.environ.get("PADDLE_RANK_IN_NODE") or os.environ.get("PADDLE_LOCAL_RANK") or "0"
    os.environ.setdefault("FLAGS_selected_npus", selected)
    os.environ["PADDLE_DISTRI_BACKEND"], os.environ["PADDLE_XCCL_BACKEND"] = "xccl", "npu"


def start(script: str, argv: Sequence[str], device: Device) -> int:
    """Run ``script argv`` in as many processes as ``--nproc`` asks for; returns their exit code.

    ``device`` is chosen already (``llm_npu.device.select``), which the processes inherit.
    ValueError for more processes than devices, for the CPU, and for a device that names one id.
    """
    count, output_dir = config.nproc_from(argv), Path(config.output_dir_from(argv)).expanduser()
    if device.kind == "cpu":
        raise ValueError(GLOO)
    _check(device, count)
    if output_dir.exists() and not output_dir.is_dir():
        raise ValueError(f"--output_dir is {output_dir}, which is a file; give a folder.")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    os.environ.setdefault("GLOG_minloglevel", "2")
    controller = _controller(script, argv, count, output_dir / "log")
    controller.build_job()
    controller.build_pod()
    controller.deploy_pod()
    return Watch([each._proc._proc for each in controller.pod.containers], output_dir / "log").until_end()


def _check(device: Device, count: int) -> None:
    if ":" in device.name:
        raise ValueError(
            f"--device {device.name} names one device, but {count} processes take one each; give npu, "
            "npu:card or virtual_npu"
        )
    if device.kind == "virtual" and count > virtual_npu.device_count():
        raise ValueError(
            f"{count} processes need a device each, but there are {virtual_npu.device_count()} virtual NPUs; "
            "VIRTUAL_NPU_DEVICES (at most 16) sets their number"
        )
    if device.kind == "card" and count > (cards := find_card().count):
        raise ValueError(
            f"{count} processes need a card each, but {cards} can be seen (ASCEND_RT_VISIBLE_DEVICES)"
        )


def _controller(script: str, argv: Sequence[str], count: int, logs: Path):
    """Paddle's controller of the processes; imports paddle."""
    devices = ",".join(map(str, range(count)))
    options = f"--nproc_per_node {count} --devices {devices} --log_level ERROR --log_overwrite 1"
    before = sys.argv
    sys.argv = ["paddle.distributed.launch", *options.split(), "--enable_gpu_log", "0"]
    sys.argv += ["--log_dir", str(logs), script, *argv]
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in console.import_frameworks
            from paddle.distributed.launch.context import Context
            from paddle.distributed.launch.controllers.collective import CollectiveController

        class Controller(CollectiveController):
            def new_container(self, *args, envs, **kwargs):
                container = super().new_container(*args, envs=envs, **kwargs)
                if envs["PADDLE_TRAINER_ID"] == "0":
                    container.start = functools.partial(_start_on_terminal, container)
                return container

            def save_pod_log(self, info):
                """Paddle writes the whole environment to a file here, and below."""

            def save_pod_env(self):
                pass

        return Controller(Context(enable_plugin=False))
    finally:
        sys.argv = before


def _start_on_terminal(container) -> None:
    """In place of a container's ``start``, which gives it a file to write to."""
    from paddle.distributed.launch.utils.process_context import ProcessContext

    container._proc = ProcessContext(container.entrypoint, container.env, out=sys.stdout, err=sys.stderr)
    container._proc.start()


class Watch:
    """Waits for the processes of all ranks. ``logs`` is where those of rank 1 and more write."""

    def __init__(self, processes: Sequence, logs: Path):
        self.processes = list(processes)
        self.logs = logs
        self.received: int | None = None
        self.failed: int | None = None  # the first rank that did
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._forward)

    def until_end(self) -> int:
        """The exit code of the rank that failed first; else of rank 0."""
        running, poll = {}, select.poll()
        for rank, process in enumerate(self.processes):
            descriptor = os.pidfd_open(process.pid)
            running[descriptor] = rank
            poll.register(descriptor, select.POLLIN)
        deadlines: list[tuple[float, signal.Signals]] = []
        while running:
            wait = max(0.0, deadlines[0][0] - time.monotonic()) * 1000 if deadlines else None
            ended = [descriptor for descriptor, _ in poll.poll(wait)]
            if deadlines and time.monotonic() >= deadlines[0][0]:
                self._signal(deadlines.pop(0)[1])
            for descriptor in ended:
                poll.unregister(descriptor)
                os.close(descriptor)
                rank = running.pop(descriptor)
                if self.processes[rank].wait() != 0 and self.failed is None and not self._stopped(rank):
                    self.failed = rank
                    deadlines = self._end_others(rank)
        return self._conclusion()

    def _stopped(self, rank: int) -> bool:
        """Whether the rank has ended as all do that are told to by the signal which was received."""
        if self.received is None:
            return False
        return _exit_code(self.processes[rank].returncode) == 128 + self.received

    def _end_others(self, rank: int) -> list[tuple[float, signal.Signals]]:
        """When to send which signal to the others. What one rank refuses, the others are about to."""
        now = time.monotonic()
        own = ENDING if self.processes[rank].returncode == BAD_INPUT else 0.0
        return [(now + own, signal.SIGTERM), (now + own + ENDING, signal.SIGKILL)]

    def _conclusion(self) -> int:
        if self.failed is None:
            return _exit_code(self.processes[0].returncode)
        returned, file = self.processes[self.failed].returncode, self.logs / f"workerlog.{self.failed}"
        code = _exit_code(returned)
        how = f"ended with exit code {code}"
        if returned < 0:
            how = f"was killed by {signal.Signals(-returned).name}"
        if self.failed != 0 and not (code == BAD_INPUT and self.processes[0].returncode == BAD_INPUT):
            print(f"rank {self.failed} {how}; the end of {file}:\n{_tail(file)}", file=sys.stderr)
        elif returned < 0:
            print(f"rank 0 {how}", file=sys.stderr)
        return code

    def _forward(self, number, frame) -> None:
        self.received = number
        self._signal(number)

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                lost = self.failed is not None and _is_stopped(process.pid)  # it would not hear of SIGTERM
                os.kill(process.pid, signal.SIGKILL if lost else number)


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP, or a debugger, holds the process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def _exit_code(returned: int) -> int:
    """As a shell has it: 128 + n for a process that signal n ended."""
    return 128 - returned if returned < 0 else returned


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-SHOWN:].rstrip() if file.exists() else "(nothing was written)"
