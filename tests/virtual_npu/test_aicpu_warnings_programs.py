"""Programs of their own get warnings about float64: on the virtual NPU, and from ``llm_npu.dtypes run``."""

import re
import sys

import pytest

from virtual_npu import environment, paddle_folder

pytestmark = pytest.mark.slow

PROGRAM = """
import numpy
import paddle
paddle.set_device("npu")
y = paddle.to_tensor(numpy.ones([8, 8]))
for _ in range(3):
    y * 2
print("end")
"""
LINE = 7
QUIET = {"VIRTUAL_NPU_QUIET": "1"}
RUN = ("-m", "llm_npu.dtypes", "run")
ON_NPU = ("-m", "virtual_npu")


@pytest.fixture
def program(tmp_path):
    """A function that writes a program; it returns the file."""

    def write(text=PROGRAM):
        file = tmp_path / "train.py"
        file.write_text(text)
        return file

    return write


def warned_lines(text, file):
    """Line and kernel of each warning."""
    matches = re.findall(
        rf"^{re.escape(str(file))}:(\d+): AICPUWarning: a card would run (\w+) ", text, re.MULTILINE
    )
    return [(int(line), kernel) for line, kernel in matches]


@pytest.mark.parametrize("how", [ON_NPU, RUN, (*RUN, "--operators")])
def test_a_plain_program(run_python, program, tmp_path, how):
    """It need not be able to import this project."""
    done = run_python(*how, program(), cwd=tmp_path, **QUIET)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    kernel = "multiply" if "--operators" in how else "scale"
    assert warned_lines(done.stderr, program()) == [(LINE, kernel)]
    assert "AICPU: 3 kernel calls at 1 sites" in done.stderr
    assert f"3 x {kernel} float64, {program()}:{LINE} in <module>" in done.stderr


def test_the_variable_turns_it_off(run_python, program):
    done = run_python(*ON_NPU, program(), VIRTUAL_NPU_AICPU_WARNINGS="0", **QUIET)
    assert (done.returncode, done.stdout) == (0, "end\n") and "AICPU" not in done.stderr


def test_a_wrong_value_is_one_sentence(run_python, program):
    done = run_python(*ON_NPU, program(), VIRTUAL_NPU_AICPU_WARNINGS="all", **QUIET)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "0, 1, host" in done.stderr


@pytest.mark.parametrize("how", [ON_NPU, (*RUN, "--operators")])
def test_with_warnings_as_errors_the_program_ends_at_the_line(run_python, program, how):
    options = ("-W", "error:a card would run:UserWarning")
    done = run_python(*options, *how, program(), **QUIET)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert f'"{program()}", line {LINE}, in <module>' in done.stderr
    assert re.search(
        rf"^[\w.]*AICPUWarning: a card would run .*{program()}:{LINE} ", done.stderr, re.MULTILINE
    )
    assert "NotImplementedError" not in done.stderr


def test_the_last_line_of_a_captured_program_is_an_error_too(run_python, program):
    double = "def double(x):\n    return x + x\ncaptured = paddle.jit.to_static(double, full_graph=True)\n"
    text = f"{PROGRAM.replace('y * 2', 'pass')}{double}captured(y)\n"
    done = run_python("-W", "error:a card would run:UserWarning", *ON_NPU, program(text), **QUIET)
    assert (done.returncode, done.stdout) == (1, "end\n"), done.stderr
    assert f"{program(text)}:10 in double" in done.stderr


WORKERS = """
import numpy
import paddle

class Rows(paddle.io.Dataset):
    def __getitem__(self, index):
        paddle.set_device("npu")
        row = paddle.to_tensor(numpy.ones([4]))
        return (row + row).astype("float32").numpy()

    def __len__(self):
        return 8

for batch in paddle.io.DataLoader(Rows(), batch_size=2, num_workers=2):
    pass
print("end")
"""


@pytest.mark.parametrize("how", [ON_NPU, (*RUN, "--operators")])
def test_workers_of_a_data_loader_warn_once(run_python, program, how):
    done = run_python(*how, program(WORKERS), **QUIET)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert sorted(warned_lines(done.stderr, program(WORKERS)))[0] == (9, "add")
    assert len(warned_lines(done.stderr, program(WORKERS))) == len(
        set(warned_lines(done.stderr, program(WORKERS)))
    )
    assert "8 x add float64" in done.stderr


RANKS = """
import numpy
import paddle
import paddle.distributed as dist
dist.init_parallel_env()
y = paddle.to_tensor(numpy.ones([8, 8]))
y * 2
print("end")
"""


@pytest.mark.parametrize("how", [ON_NPU, (*RUN, "--operators")])
def test_of_two_ranks_one_warns(run_python, program, tmp_path, how):
    file = program(RANKS)
    launch = ("-m", "paddle.distributed.launch", "--devices", "0,1", "--log_dir", tmp_path / "logs", file)
    done = run_python(*how, *launch, cwd=tmp_path, **QUIET)
    assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / f"logs/workerlog.{rank}").read_text() for rank in (0, 1))
    assert [line for line, _ in warned_lines(first, file)] == [7], first
    assert not warned_lines(second, file) and "AICPU: rank 1: " in second, second


def test_usage(run_python):
    for arguments, code in ((["--help"], 0), ([], 2), (["run"], 2), (["walk", "train.py"], 2)):
        done = run_python("-m", "llm_npu.dtypes", *arguments)
        assert done.returncode == code and "usage: " in done.stdout + done.stderr


def test_python_that_does_not_find_this_project(run_elsewhere, program, tmp_path):
    """The plugin finds the package that it belongs to."""
    paths = f"import site, sys; site.USER_SITE = ''; sys.path.append({str(paddle_folder().parent)!r})"
    variables = {**environment({}), "PYTHONPATH": ""}
    # -S: an editable installation of this project is not found. Paddle 3.0 reads USER_SITE, which -S unsets.
    done = run_elsewhere(sys.executable, "-S", "-c", paths + PROGRAM, cwd=tmp_path, **variables, **QUIET)
    assert done.returncode == 0 and "<string>:7: AICPUWarning: a card would run scale" in done.stderr, (
        done.stderr
    )
