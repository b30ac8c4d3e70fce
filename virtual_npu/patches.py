"""Patches for defects of upstream Paddle that the virtual NPU would inherit.

They set environment variables, because they must take effect before paddle is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CPU_DESCRIPTION = Path("/proc/cpuinfo")
# MKL 2019's code paths, the fastest first, and the CPU features that they need.
MKL_CODE_PATHS = {
    "7": {"fma", "avx2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "5": {"fma", "avx2"},
}


def patch_variables(base: Mapping[str, str], cpu_description: Path = CPU_DESCRIPTION) -> dict[str, str]:
    """The variables to set in the environment ``base``. Values set by the user are kept."""
    return {name: base.get(name, value) for name, value in _mkl_code_path(cpu_description).items()}


def _mkl_code_path(cpu_description: Path) -> dict[str, str]:
    """Paddle 3.3's wheel bundles MKL 2019, which uses its SSE2 path on non-Intel CPUs.

    A float32 matmul is then three to eight times slower than the CPU allows. This MKL still reads a variable
    that selects the AVX2 or AVX-512 path. CPUs without AVX2 keep the default.
    """
    try:
        text = cpu_description.read_text()
    except OSError:
        return {}
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    if vendor is None or vendor[1] == "GenuineIntel":
        return {}
    line = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    for code_path, needed in MKL_CODE_PATHS.items():
        if needed <= flags:
            return {"MKL_DEBUG_CPU_TYPE": code_path}
    return {}
