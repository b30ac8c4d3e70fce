"""What the malloc setting of the host operators saves, and what it costs in memory.

    python scripts/bench_malloc.py [--rows R] [--width W] [--steps N] [--json FILE]

SwiGLU forward and backward on float32 tensors [rows, width] of the CPU place, in one process for each value
of PADDLE_FUSED_MALLOC: after as many steps to warm up, the median time and the page faults of a step, the
largest memory of the process meanwhile, and what it still has when the tensors are gone. Both are counted
from before the tensors were made.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import machine
from rich.console import Console
from rich.table import Table

SETTINGS = ("keep", "system")

STEPS = """
import json, resource, statistics, sys, time
import paddle, paddle_fused

rows, width, steps = map(int, sys.argv[1:])
paddle.set_device("cpu")
paddle_fused.swiglu(paddle.ones([1]), paddle.ones([1]))  # loads the host kernels

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

before = megabytes()
x, y, gradient = (paddle.rand([rows, width]) for _ in range(3))
x.stop_gradient = y.stop_gradient = False

def step():
    start = time.perf_counter()
    paddle.autograd.backward([paddle_fused.swiglu(x, y)], [gradient])
    seconds = time.perf_counter() - start
    x.clear_gradient(False)
    y.clear_gradient(False)
    return seconds

for _ in range(steps):
    step()
first = faults()
times = [step() for _ in range(steps)]
result = {"ms": statistics.median(times) * 1e3, "faults": (faults() - first) / steps}
result["peak_mb"] = peak() - before
del x, y, gradient
result["left_mb"] = megabytes() - before
print(json.dumps(result))
"""


def measure(setting, rows, width, steps):
    """The figures of one process: ms and page faults of a step, MB at most and MB left."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS, *map(str, (rows, width, steps))],
        env={**os.environ, "PADDLE_FUSED_MALLOC": setting},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def bench(rows, width, steps):
    return {
        "machine": machine.facts(machine.threads_in_environment()),
        "sizes": {"rows": rows, "width": width, "tensor_mb": rows * width * 4 / 1e6},
        "settings": {setting: measure(setting, rows, width, steps) for setting in SETTINGS},
    }


def show(result):
    sizes, about = result["sizes"], result["machine"]
    title = (
        f"SwiGLU forward and backward, float32 [{sizes['rows']}, {sizes['width']}], "
        f"{sizes['tensor_mb']:.0f} MB a tensor; {about['processor']}, {about['threads']} threads, "
        f"commit {about['commit']}"
    )
    table = Table(
        "PADDLE_FUSED_MALLOC", "ms a step", "page faults a step", "MB at most", "MB left", title=title
    )
    for setting, found in result["settings"].items():
        figures = (f"{found[key]:.1f}" for key in ("ms", "faults", "peak_mb", "left_mb"))
        table.add_row(setting, *figures)
    Console().print(table)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--width", type=int, default=5504)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = bench(arguments.rows, arguments.width, arguments.steps)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
