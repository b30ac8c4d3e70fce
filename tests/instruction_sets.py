"""The instruction sets that the host kernels are compiled for, and those that this machine offers."""

from pathlib import Path

# What each needs from the CPU, from the narrowest to the widest; the kernels are compiled for all of them.
NEEDS = {
    "baseline": set(),
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512_bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
    "amx": {"amx_tile", "amx_bf16"},
}


def available() -> list[str]:
    cpu_flags = set(Path("/proc/cpuinfo").read_text().split())
    return [name for name, flags in NEEDS.items() if flags <= cpu_flags]
