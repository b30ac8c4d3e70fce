"""Runs whose screen goes away: they continue without it, or end after a step with a checkpoint."""

import os
import signal
import sys

import pytest
import ranks
from checkpoint_files import store
from test_launch import SCRIPT, arguments  # noqa: F401  (a fixture)

from llm_npu.training import checkpoint

PLAIN = ["--disable_tqdm", "true", "--do_eval", "false", "--save_steps", "2"]
TWO = ["--nproc", "2", "--tensor_parallel_degree", "2"]
RESTARTED = ["--max_restarts", "1", "--resume_from_checkpoint", "auto"]


@pytest.fixture
def unread():
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], TWO + RESTARTED], ids=["one process", "nproc"])
def test_nobody_reads_stdout(start_python, arguments, tmp_path, unread, flags):  # noqa: F811
    out = tmp_path / "out"
    command = [SCRIPT, *arguments, *PLAIN, *flags, "--max_steps", "4", "--output_dir", out]
    process = start_python(*command, stdout=unread)
    _, stderr = process.communicate(timeout=ranks.TIMEOUT)
    assert process.returncode == 0, stderr
    assert stderr.count("metrics.jsonl") == 1
    assert "restart " not in stderr and "Traceback" not in stderr
    assert checkpoint.verify(out / "checkpoint-4") == 4


@pytest.mark.slow
def test_nobody_reads_anything(start_python, arguments, tmp_path, unread):  # noqa: F811
    """What a rank refuses is exit code 2, although nobody can be told."""
    command = [
        SCRIPT,
        *arguments,
        *PLAIN,
        *TWO,
        *RESTARTED,
        "--max_steps",
        "4",
        "--output_dir",
        tmp_path / "out",
    ]
    process = start_python(*command, "--learning_rate", "1e39", stdout=unread, stderr=unread)
    assert process.wait(ranks.TIMEOUT) == 2


def until_step(process, step):
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            return


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], TWO], ids=["one process", "nproc"])
def test_a_closed_terminal_saves(start_python, arguments, tmp_path, flags):  # noqa: F811
    out = tmp_path / "out"
    command = [SCRIPT, *arguments, *PLAIN, *flags, "--max_steps", "100000", "--output_dir", out]
    process = start_python(*command)
    until_step(process, 3)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)  # the shell's, after the kernel's
    stdout, stderr = process.communicate(timeout=ranks.TIMEOUT)
    assert process.returncode == 129, stderr
    newest = checkpoint.to_resume(True, out)
    assert f"stopped by SIGHUP after step {checkpoint.step_of(newest)};" in stdout


SECOND = """
import signal, sys
from types import SimpleNamespace
from llm_npu.training.end_of_run import StopOnSignal

stop = StopOnSignal()
stop.on_train_begin(SimpleNamespace(output_dir=sys.argv[1]), None, None)
signal.raise_signal(signal.SIGINT)
assert stop.received == signal.SIGINT
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.slow
def test_a_second_ctrl_c_says_what_is_left(run_python, tmp_path):
    newest = store(tmp_path, 7, {"a": "b"})
    done = run_python("-c", SECOND, tmp_path)
    assert done.returncode == -signal.SIGINT, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("SIGINT: ")
    assert second.startswith("stopped by a second SIGINT")
    assert second.endswith(f"{newest} is the last complete checkpoint")


CLOSED = """
import os
from llm_npu.core import stopping

stopping.listen("before the end")
file = os.open("file", os.O_WRONLY | os.O_CREAT)
print("to nobody")
stopping.print_now("to nobody")
os.write(file, str(file).encode())
"""


def test_no_file_gets_the_number_of_a_closed_stream(run_python, tmp_path):
    (tmp_path / "closed.py").write_text(CLOSED)
    command = f"{sys.executable} closed.py <&- >&- 2>&-"
    done = run_python("-c", f"import os; os.execlp('sh', 'sh', '-c', {command!r})", cwd=tmp_path)
    assert done.returncode == 0 and int((tmp_path / "file").read_text()) > 2
