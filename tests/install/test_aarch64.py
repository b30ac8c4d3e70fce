"""The project on aarch64: compiled across, and run by an emulator with the newest Paddle that has a wheel.

On a machine that is aarch64 itself the compiler and the Python are its own. Downloads and compiled files stay
in the cache of ``building.wheels``.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from instruction_sets import NEEDS
from places import ROOT

from building import emulation, wheels
from building.commands import find_tools, run
from building.installed_paddle import RELEASES
from paddle_fused.libraries import SetupError

PROGRAMS = Path(__file__).with_name("emulated")
TARGET = wheels.Target(RELEASES["aarch64"][-1], "aarch64")
TIMEOUT = 900

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel for aarch64 and its Paddle."""
    try:  # what has to be there, or to be fetched
        if TARGET.emulated:
            find_tools(wheels.CROSS_TOOLS)
        environment = wheels.environment(TARGET)
    except SetupError as error:
        pytest.skip(str(error))
    wheel = wheels.build(TARGET, environment.site, tmp_path_factory.mktemp("wheel"))
    assert wheel.name.endswith(f"+paddle{TARGET.release}-py3-none-linux_aarch64.whl")
    wheels.install(environment, wheel)
    return environment


def report_of(environment, program, *arguments):
    """What a program of tests/install/emulated prints last; its other lines are shown if it fails."""
    done = environment.run(
        PROGRAMS / f"{program}.py", *arguments, timeout=TIMEOUT, OMP_NUM_THREADS="2", GLOG_minloglevel="2"
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    print(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def check_environment(report):
    assert report["environment"]["machine"] == "aarch64"
    assert report["environment"]["paddle"] == TARGET.release


def test_kernels_and_thunks(installed, tmp_path):
    """The wheel's kernels against scalar formulas; calls of more arguments than there are registers."""
    kernels = installed.site / "paddle_fused/lib/libpaddle_fused_kernels.so"
    options = [f"-DKERNELS={kernels}", "-DOPENMP=-lgomp"]
    if TARGET.emulated:
        toolchain = ROOT / "building/aarch64.cmake"
        options += [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DCMAKE_CXX_COMPILER={wheels.CROSS_COMPILER}"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # cmake and ninja
    tools = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "2"}
    checks = ROOT / "paddle_fused/csrc/checks"
    run(["cmake", "-S", checks, "-B", tmp_path, "-G", "Ninja", *options], env=tools)
    run(["cmake", "--build", tmp_path], env=tools)

    def output_of(program):
        emulator = emulation.command(wheels.emulated_python()) if TARGET.emulated else []
        return run([*emulator, tmp_path / program], env=tools, timeout=TIMEOUT)

    assert "12 integers and 12 floating-point numbers: 0 failures" in output_of("paddle_fused_thunks_check")
    output = output_of("paddle_fused_kernels_check")
    offered = {"baseline", "neon"}
    assert all(f"{isa:11} matmul " in output for isa in offered) and "within their bounds" in output
    for isa in NEEDS.keys() - offered:
        assert f"{isa:11} is not supported" in output


def test_every_operator_on_both_devices(installed):
    report = report_of(installed, "operators")
    check_environment(report)
    own = [result for result in report["found"] if result["backend"] != "composed"]
    failed = [result for result in own if result["passed"] is False]
    assert not failed
    ran = {
        (result["operator"], result["backend"], result["device"])
        for result in report["found"]
        if result["passed"]
    }
    for operator in {result["operator"] for result in report["found"]}:
        assert {(operator, "native", "cpu"), (operator, "native", "npu")} <= ran, operator
    assert {operator for operator, backend, device in ran if (backend, device) == ("ascend", "npu")}


def test_a_training_step(installed):
    report = report_of(installed, "layer")
    check_environment(report)
    for name, figures in report["tensors"].items():
        assert figures["error"] <= figures["allowed"], name
    assert {"flash_attention", "fused_adamw", "linear_cross_entropy", "rms_norm"} <= set(report["native"])


def test_the_sum_over_two_ranks(installed, tmp_path):
    ranks = report_of(installed, "two_ranks", tmp_path)
    assert [rank["place"] for rank in ranks] == ["Place(npu:0)", "Place(npu:1)"]
    assert all(rank["machine"] == "aarch64" and all(rank["sums"].values()) for rank in ranks)
