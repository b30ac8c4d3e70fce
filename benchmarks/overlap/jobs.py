"""Starts two ranks of worker.py with a link of given bandwidth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import ROOT
from benchmarks.contenders import Failed

from .cases import RANKS

WORKER = Path(__file__).with_name("worker.py")
TIMEOUT = 600  # seconds


def run(job: dict, threads: int, gbps: float | None = None, latency_us: float = 0.0) -> dict:
    """Return rank 0's measurements. ``gbps``: gigabytes per second of a rank's link, None for no limit."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(job))
        command = [
            *(sys.executable, "-m", "virtual_npu", "-m", "paddle.distributed.launch"),
            *("--devices", ",".join(map(str, range(RANKS))), "--log_dir", folder, "--log_level", "ERROR"),
            *(str(WORKER), str(question), str(answer)),
        ]
        try:
            done = subprocess.run(
                command,
                env=_environment(threads, gbps, latency_us),
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"two ranks did not end within {TIMEOUT} s.\n{_logs(folder)}") from error
        if done.returncode or not answer.exists():
            logs = _logs(folder) or done.stderr[-2000:]  # the launcher's output, if it started no rank
            raise Failed(f"two ranks ended with {done.returncode}.\n{logs}")
        return json.loads(answer.read_text())


def _environment(threads: int, gbps: float | None, latency_us: float) -> dict[str, str]:
    changed = dict(os.environ)
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), changed.get("PYTHONPATH")]))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        changed[name] = str(threads)
    changed |= {"VIRTUAL_NPU_QUIET": "1", "GLOG_minloglevel": "2", "KMP_BLOCKTIME": "0"}
    # Otherwise waiting for a core would count as link time.
    changed["VIRTUAL_NPU_REALTIME"] = "1"
    for name, value in (("VIRTUAL_NPU_LINK_GBPS", gbps), ("VIRTUAL_NPU_LINK_US", latency_us)):
        changed.pop(name, None)
        if value:
            changed[name] = repr(value)
    return changed


def _logs(folder: str) -> str:
    files = sorted(Path(folder).glob("workerlog.*"))
    return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-2000:]}" for file in files)
