"""The programs that check kernels and thunks without Paddle, on this processor."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from instruction_sets import NEEDS, available
from places import ROOT

import paddle_fused

pytestmark = pytest.mark.slow

PACKAGE = Path(paddle_fused.__file__).parent
CSRC = ROOT / "paddle_fused" / "csrc"
PROGRAM = "paddle_fused_kernels_check"
KERNELS = PACKAGE / "lib" / "libpaddle_fused_kernels.so"
# Paddle's OpenMP runtime, which wheels for aarch64 lack.
RUNTIME = next(iter((Path(paddle.__file__).parent / "libs").glob("libiomp5.so")), "-lgomp")


def run(*command, **environment):
    done = subprocess.run(
        [*map(str, command)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def build(folder, *options):
    tools = Path(sys.executable).parent  # where cmake and ninja are installed
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    run("cmake", "-S", CSRC / "checks", "-B", folder, "-G", "Ninja", *options, **environment)
    run("cmake", "--build", folder, **environment)
    return folder / PROGRAM


def test_every_instruction_set_of_this_processor(tmp_path):
    """The installed library, on two threads."""
    program = build(tmp_path, f"-DKERNELS={KERNELS}", f"-DOPENMP={RUNTIME}")
    output = run(program, LD_LIBRARY_PATH=str(Path(RUNTIME).parent), OMP_NUM_THREADS="2")
    for isa in NEEDS:
        checked = f"{isa:11} matmul " in output
        assert checked == (isa in available()), output
        assert checked == (f"{isa:11} is not offered by this processor" not in output), output


def test_thunks_pass_more_arguments_than_there_are_registers(tmp_path):
    build(tmp_path, f"-DKERNELS={KERNELS}", f"-DOPENMP={RUNTIME}")
    output = run(tmp_path / "paddle_fused_thunks_check")
    assert "12 integers and 12 floating-point numbers: 0 failures" in output
