"""PADDLE_FUSED_MALLOC: with "keep" large results find their pages there; "system" leaves malloc alone."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "bench_malloc.py"
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

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("malloc") / "result.json"
    sizes = ("--rows", ROWS, "--width", WIDTH, "--steps", STEPS)
    command = [sys.executable, "-c", SMALL_PAGES, sys.executable, SCRIPT, *map(str, sizes), "--json", path]
    subprocess.run(command, check=True)
    return json.loads(path.read_text())["settings"]


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


CALL = "import paddle, paddle_fused; paddle_fused.swiglu(paddle.ones([2]), paddle.ones([2]))"


def test_other_values_are_refused(run_python):
    done = run_python("-c", CALL, PADDLE_FUSED_MALLOC="always")
    assert done.returncode != 0
    assert "PADDLE_FUSED_MALLOC is 'always'; accepted: 'keep' (the default) and 'system'." in done.stderr
