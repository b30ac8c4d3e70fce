"""PADDLE_FUSED_MALLOC: with "keep" large results find their pages there; "system" leaves malloc alone."""

import json
import os
import platform
import subprocess
import sys

import pytest

from paddle_fused import host_memory

pytestmark = pytest.mark.slow

ROWS, WIDTH = 1024, 10240  # 42 MB a tensor: malloc keeps blocks of up to 32 MiB by itself
STEPS = 15
TENSOR_PAGES = ROWS * WIDTH * 4 / 4096
RESULTS = 3  # y and two gradients

# Runs ARGV[1:] with pages of 4 KiB, which are counted: on many distributions the kernel takes one of 2 MiB
# wherever it can. 41 is PR_SET_THP_DISABLE; programs inherit it.
SMALL_PAGES = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""

# Page faults of a step after as many to warm up; the largest memory of the process meanwhile, and what it
# still has when the tensors are gone, both beyond what it had before them.
STEPS_OF_SWIGLU = """
import json, resource, sys
import paddle, paddle_fused
from paddle_fused import host_memory

rows, width, steps = map(int, sys.argv[1:])
paddle.set_device("cpu")
host_memory.keep_freed_memory()
paddle_fused.swiglu(paddle.ones([1]), paddle.ones([1]))  # loads the host kernels

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6

def peak():  # not ru_maxrss, which a program has from the process that has started it
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def several_steps():
    for _ in range(steps):
        paddle.autograd.backward([paddle_fused.swiglu(x, y)], [gradient])
        x.clear_gradient(False)
        y.clear_gradient(False)

before = megabytes()
x, y, gradient = (paddle.rand([rows, width]) for _ in range(3))
x.stop_gradient = y.stop_gradient = False
several_steps()
first = faults()
several_steps()
found = {"faults": (faults() - first) / steps, "peak_mb": peak() - before}
del x, y, gradient
print(json.dumps({**found, "left_mb": megabytes() - before}))
"""

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")


@pytest.fixture(scope="module")
def settings():
    """{setting: the measurements of a process with it}."""
    command = [sys.executable, "-c", SMALL_PAGES, sys.executable, "-c", STEPS_OF_SWIGLU]
    command += map(str, (ROWS, WIDTH, STEPS))
    results = {}
    for setting in ("keep", "system"):
        environment = {**os.environ, "PADDLE_FUSED_MALLOC": setting}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        results[setting] = json.loads(done.stdout.splitlines()[-1])
    return results


@glibc_only
def test_results_find_their_pages_there(settings):
    assert settings["system"]["faults"] > RESULTS * TENSOR_PAGES / 2
    assert settings["keep"]["faults"] < RESULTS * TENSOR_PAGES / 20


@glibc_only
def test_its_cost_is_the_memory_of_what_was_freed(settings):
    assert settings["system"]["left_mb"] < settings["system"]["peak_mb"] / 10
    assert settings["keep"]["left_mb"] > settings["keep"]["peak_mb"] / 2
    # Freed blocks do not fit every next tensor: more is kept than was needed at once, but not without end.
    assert settings["keep"]["peak_mb"] < 2.5 * settings["system"]["peak_mb"]


# Prints whether malloc still maps a large block by itself, before and after the program asks it not to.
MAPPED = """
import ctypes, re
import paddle, paddle_fused
from paddle_fused import host_memory

paddle.set_device("cpu")
paddle_fused.swiglu(paddle.ones([2]), paddle.ones([2]))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def is_mapped(size=2**27):
    address = libc.malloc(ctypes.c_size_t(size))
    begins = [line.split("-")[0] for line in open("/proc/self/maps")]
    return f"{address & ~0xfff:x}" in [begin.lstrip("0") for begin in begins]  # of a mapping of its own

before = is_mapped()
host_memory.keep_freed_memory()
print(before, is_mapped())
"""


@glibc_only
def test_operators_leave_malloc_as_it_is(run_python):
    done = run_python("-c", MAPPED)
    assert done.stdout == "True False\n", done.stderr


def test_other_values_are_refused(monkeypatch):
    monkeypatch.setenv("PADDLE_FUSED_MALLOC", "always")
    with pytest.raises(ValueError, match="PADDLE_FUSED_MALLOC is 'always'; accepted: 'keep'"):
        host_memory.keep_freed_memory()
