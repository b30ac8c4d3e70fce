"""The machine's bandwidth: memory copies and updates, for sets of several sizes.

    copy              ordinary stores: a cache line is read before it is written
    copy_nontemporal  stores that bypass the caches: only the source is read
    update            a = a + b in place: two reads, and one write of a line that is already cached

The copies use the C library's memcpy. GLIBC_TUNABLES selects its variant and is read once at process start;
hence the two processes. The update uses numpy. Every thread works on its own part. Results are (bytes read +
bytes written) / second. If the tunables have no effect (another C library or processor), both copies use the
default memcpy.

As a program, this module measures one kind of copy: ``python -m benchmarks.ops.limits THREADS ROUNDS``.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks import ROOT

MIB = 2**20
SETS_MIB = (8, 32, 64, 128, 512)  # bytes read and written together
_NEVER = 2**40
_VECTORS = f"glibc.cpu.x86_rep_movsb_threshold={_NEVER}"  # otherwise the processor's own string copy
COPIES = {
    "copy": f"{_VECTORS}:glibc.cpu.x86_non_temporal_threshold={_NEVER}",
    "copy_nontemporal": f"{_VECTORS}:glibc.cpu.x86_non_temporal_threshold={MIB}",
}


def measure(threads: int, rounds: int, sets_mib: tuple[int, ...] = SETS_MIB) -> dict[str, dict[int, float]]:
    """{way: {bytes of the set: bytes per second}}; ways: ``copy``, ``copy_nontemporal``, ``update``."""
    rates_of: dict[str, dict[int, float]] = {}
    for way, tunables in COPIES.items():
        command = [
            sys.executable,
            "-m",
            "benchmarks.ops.limits",
            str(threads),
            str(rounds),
            *map(str, sets_mib),
        ]
        environment = {**os.environ, "GLIBC_TUNABLES": tunables, "PYTHONPATH": str(ROOT)}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        rates = {
            name: {int(size): rate for size, rate in of.items()}
            for name, of in json.loads(answer.stdout).items()
        }
        rates_of[way] = rates["copy"]
        rates_of["update"] = rates["update"]
    return rates_of


def rate(of_sets: dict[int, float], size: int) -> float:
    """Bytes per second of the measured set closest to ``size`` bytes, on a logarithmic scale."""
    return of_sets[min(of_sets, key=lambda measured: abs(np.log(measured / max(size, 1))))]


def _rates(threads: int, rounds: int, sets_mib: list[int]) -> dict[str, dict[int, float]]:
    with ThreadPoolExecutor(threads) as pool:
        result: dict[str, dict[int, float]] = {"copy": {}, "update": {}}
        for size in (mib * MIB for mib in sets_mib):
            source, target = np.ones(size // 8, np.float32), np.ones(size // 8, np.float32)
            parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
            for way, work, moved in (("copy", _copy, size), ("update", _update, size // 2 * 3)):
                result[way][size] = moved / _median_seconds(pool, work, parts, rounds)
    return result


def _copy(part):
    source, target = part
    ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)  # releases the GIL


def _update(part):
    source, target = part
    np.add(target, source, out=target)


def _median_seconds(pool, work, parts, rounds: int) -> float:
    """Seconds of one pass over all parts. Small sets are passed several times, to amortize the start of
    threads."""
    passes = max(1, 256 * MIB // sum(source.nbytes * 2 for source, _ in parts))

    def several(part):
        for _ in range(passes):
            work(part)

    seconds = []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        list(pool.map(several, parts))
        if turn:  # the first pass touches the pages
            seconds.append((time.perf_counter() - began) / passes)
    return float(np.median(seconds))


if __name__ == "__main__":
    _threads, _rounds, *_sets = map(int, sys.argv[1:])
    print(json.dumps(_rates(_threads, _rounds, _sets)))
