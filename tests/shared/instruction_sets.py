"""The instruction sets that the host kernels are compiled for, and those that this machine offers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

# What each needs from the CPU, from the narrowest to the widest; the kernels are compiled for all of them.
NEEDS = {
    "baseline": set(),
    "neon": {"asimd"},
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512_bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
    "amx": {"amx_tile", "amx_bf16"},
}


def available() -> list[str]:
    cpu_flags = set(Path("/proc/cpuinfo").read_text().split())
    return [name for name, flags in NEEDS.items() if flags <= cpu_flags]


def narrowest_by_default(isas: Sequence[str]) -> list:
    """The parameters of a test that starts a process for each: all but the first are slow.

    The tests' own process runs on the widest.
    """
    return [pytest.param(isa, marks=[pytest.mark.slow] * (isa != isas[0])) for isa in isas]
