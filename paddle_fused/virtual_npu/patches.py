"""Patches of defects of stock Paddle that the virtual NPU would inherit.

They work through the environment, because they must be in force when paddle is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CPU_DESCRIPTION = Path("/proc/cpuinfo")
# MKL 2019's numbers of its code paths, the fastest first, and what a CPU must have for it.
MKL_CODE_PATHS = {
    "7": {"fma", "avx2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "5": {"fma", "avx2"},
}


def patch_variables(base: Mapping[str, str], cpu_description: Path = CPU_DESCRIPTION) -> dict[str, str]:
    """The variables to set in the environment ``base``; one that the user has set keeps its value."""
    return {name: base.get(name, value) for name, value in _mkl_code_path(cpu_description).items()}


def _mkl_code_path(cpu_description: Path) -> dict[str, str]:
    """The wheel of Paddle 3.3 bundles MKL 2019, which on a CPU that is not Intel's takes its SSE2 path.

    A float32 matmul is then three to eight times slower than the machine allows. The variable, which that MKL
    still reads, selects the AVX2 or the AVX-512 path; a machine without AVX2 keeps the other.
    """
    try:
        text = cpu_description.read_text()
    except OSError:
        return {}
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    if vendor is None or vendor[1] == "GenuineIntel":
        return {}
    found = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    for code_path, needed in MKL_CODE_PATHS.items():
        if needed <= flags:
            return {"MKL_DEBUG_CPU_TYPE": code_path}
    return {}
