"""The program that checks the kernels without Paddle: for this processor, and for one that is not x86."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from instruction_sets import NEEDS, available

import paddle_fused

PACKAGE = Path(paddle_fused.__file__).parent
CSRC = Path(__file__).resolve().parents[1] / "paddle_fused" / "csrc"
PROGRAM = "paddle_fused_kernels_check"
TARGET = ("-target", "aarch64-linux-musl")
AARCH64 = 183  # e_machine of the ELF header


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
    """The very library that is installed, on two threads."""
    runtime = Path(paddle.__file__).parent / "libs" / "libiomp5.so"
    kernels = PACKAGE / "lib" / "libpaddle_fused_kernels.so"
    program = build(tmp_path, f"-DKERNELS={kernels}", f"-DOPENMP={runtime}")
    output = run(program, LD_LIBRARY_PATH=str(runtime.parent), OMP_NUM_THREADS="2")
    for isa in NEEDS:
        checked = f"{isa:11} matmul " in output
        assert checked == (isa in available()), output
        assert checked == (f"{isa:11} is not offered by this processor" not in output), output


@pytest.mark.slow
def test_aarch64(tmp_path):
    """Compiled for a processor that is not x86, and run where an emulator of it is installed."""
    compiler = [sys.executable, "-m", "ziglang"]
    options = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    program = build(tmp_path, f"-DCMAKE_CXX_COMPILER={';'.join([*compiler, 'c++', *TARGET])}", *options)
    assert int.from_bytes(program.read_bytes()[18:20], "little") == AARCH64
    thunks = CSRC / "virtual_npu" / "bridge" / "thunks.S"
    run(*compiler, "cc", *TARGET, "-c", thunks, "-I", CSRC, "-o", tmp_path / "thunks.o")
    emulator = shutil.which("qemu-aarch64")
    if emulator:
        output = run(emulator, program)
        assert f"{'baseline':11} matmul " in output and "All results hold." in output, output
        for isa in NEEDS.keys() - {"baseline"}:
            assert f"{isa:11} is not offered by this processor" in output, output
