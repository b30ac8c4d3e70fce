"""The programs that check kernels and thunks without Paddle, on this processor."""

import json
import os
import re
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


def configure(folder, *options):
    """Returns the PATH for the build: cmake and ninja are installed beside Python."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run("cmake", "-S", CSRC / "checks", "-B", folder, "-G", "Ninja", *options, **environment)
    return environment


def build(folder, *options):
    environment = configure(folder, *options)
    run("cmake", "--build", folder, **environment)
    return folder / PROGRAM


def optimization_levels(folder, host_only):
    """The -O level of each instruction set's kernels."""
    options = ("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DPADDLE_FUSED_HOST_ISAS_ONLY={host_only}")
    configure(folder, *options)
    levels = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        if isa := re.search(r"-DPF_TARGET=(\w+)", entry["command"]):
            levels.setdefault(isa[1], set()).add(re.findall(r" -O(\d)", entry["command"])[-1])
    return levels


def test_a_local_build_fully_optimizes_the_widest_instruction_set_only(tmp_path):
    levels = optimization_levels(tmp_path, "ON")
    complete = [isa for isa in available() if isa in ("baseline", "neon", "avx2", "avx512")]
    narrower = set(complete[:-1])
    assert set(available()) <= set(levels)
    assert levels == {isa: {"1"} if isa in narrower else {"3"} for isa in levels}


def test_a_portable_build_fully_optimizes_every_instruction_set(tmp_path):
    levels = optimization_levels(tmp_path, "OFF")
    assert set(available()) <= set(levels)
    assert all(level == {"3"} for level in levels.values())


def test_every_instruction_set_of_this_processor(tmp_path):
    """The installed library, on two threads."""
    program = build(tmp_path, f"-DKERNELS={KERNELS}", f"-DOPENMP={RUNTIME}")
    output = run(program, LD_LIBRARY_PATH=str(Path(RUNTIME).parent), OMP_NUM_THREADS="2")
    for isa in NEEDS:
        checked = f"{isa:11} matmul " in output
        assert checked == (isa in available()), output
        assert checked == (f"{isa:11} is not supported by this processor" not in output), output


def test_thunks_pass_more_arguments_than_there_are_registers(tmp_path):
    build(tmp_path, f"-DKERNELS={KERNELS}", f"-DOPENMP={RUNTIME}")
    output = run(tmp_path / "paddle_fused_thunks_check")
    assert "12 integers and 12 floating-point numbers: 0 failures" in output
