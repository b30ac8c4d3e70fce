"""Facts about the machine that affect the results."""

import os
import re
import subprocess
from pathlib import Path


def facts(threads: int) -> dict:
    """Processor, its instruction sets, cores, threads in use, memory and the commit."""
    git = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {
        "processor": _cpu_info("model name") or "unknown",
        "instructions": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in _flags()],
        "cores": cores(),
        "threads": threads,
        "memory_gb": round(_memory("MemTotal") / 1e9),
        "commit": commit or "unknown",
    }


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Bytes available without swapping."""
    return _memory("MemAvailable")


def threads_in_environment() -> int:
    """The number of threads in OMP_NUM_THREADS; 1 if it is not set, because `import paddle` sets it to 1."""
    return int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0])


def _cpu_info(name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else ""


def _flags() -> list[str]:
    return (_cpu_info("flags") or _cpu_info("Features")).split()


def _memory(name: str) -> int:
    return int(re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)[1]) * 1024
