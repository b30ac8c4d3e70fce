"""python -m virtual_npu: programs run as with Python itself, on the virtual devices."""

import os
import subprocess
import sys

import paddle
import pytest

import virtual_npu

pytestmark = pytest.mark.sampled

PROGRAM = """\
import json, sys
main = sys.modules["__main__"]
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, main.__file__, sys.flags.optimize]))
def fail():
    raise KeyError("from the program")
if sys.argv[-1] == "fail":
    fail()
sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "scripts" / "program.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("how", ["script", "module"])
@pytest.mark.parametrize("end", ["0", "7", "fail"])
def test_programs_run_as_with_python_itself(run_python, program, how, end):
    arguments = ["scripts/program.py"] if how == "script" else ["-m", "scripts.program"]
    arguments += ["--flag", "a b", end]
    folder = program.parents[1]
    plain = run_python("-O", *arguments, cwd=folder)
    emulated = run_python("-O", "-m", "virtual_npu", *arguments, cwd=folder, VIRTUAL_NPU_QUIET="1")
    assert plain.returncode == {"0": 0, "7": 7, "fail": 1}[end]
    assert (emulated.returncode, emulated.stdout, emulated.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


def test_programs_find_the_device_and_the_package(run_python, tmp_path):
    script = tmp_path / "card_program.py"
    script.write_text(
        "import paddle, paddle_custom_device\n"
        "paddle.set_device('npu:1')\n"
        "print(paddle.ones([2]).place, paddle_custom_device.npu.full_version)\n"
    )
    result = run_python("-m", "virtual_npu", script)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"Place(npu:1) {paddle.version.full_version}+virtual\n"
    assert "not a card" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["program", "shell"])
def test_paddles_info_lines_stay_out_of_a_programs_output(run_python, how):
    code = "import warnings; warnings.simplefilter('ignore'); import paddle"
    # Paddle warns of more than one thread in another way.
    variables = {"GLOG_minloglevel": None, "VIRTUAL_NPU_QUIET": "1", "OMP_NUM_THREADS": "1"}
    if how == "program":
        result = run_python("-m", "virtual_npu", "-c", code, **variables)
    else:
        lines = run_python("-m", "virtual_npu", "--env", **variables)
        assert "\nexport GLOG_minloglevel=1\n" in f"\n{lines.stdout}"
        script = f'{lines.stdout}\nexec "{sys.executable}" -c "{code}"'
        environment = {name: value for name, value in {**os.environ, **variables}.items() if value}
        result = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "value"), [("GLOG_minloglevel", "0"), ("GLOG_v", "1"), ("GLOG_vmodule", "init=1")]
)
def test_what_the_user_has_paddle_log_is_left_alone(run_python, name, value):
    code = "import os; print(os.environ.get('GLOG_minloglevel'))"
    variables = {"GLOG_minloglevel": None, name: value}
    result = run_python("-m", "virtual_npu", "-c", code, **variables)
    assert result.stdout == ("0\n" if name == "GLOG_minloglevel" else "None\n"), result.stderr


def test_the_environment_for_paddles_launcher():
    assert virtual_npu.environment({})["PADDLE_XCCL_BACKEND"] == "npu"


def test_usage(run_python):
    nothing = run_python("-m", "virtual_npu")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.startswith("usage: python -m virtual_npu SCRIPT")
    result = run_python("-m", "virtual_npu", "--help")
    assert (result.returncode, result.stdout) == (0, nothing.stderr)


def test_bad_settings_on_the_command_line_are_one_line_and_exit_code_2(run_python):
    result = run_python("-m", "virtual_npu", "-c", "pass", VIRTUAL_NPU_DEVICES="99")
    assert result.returncode == 2
    assert result.stderr.startswith("error: VIRTUAL_NPU_DEVICES is '99'")
    assert result.stderr.count("\n") == 1
