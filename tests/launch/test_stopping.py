"""Ctrl-C and SIGTERM before the first step: one sentence and the exit code of a stop, at whatever moment."""

import signal

import pytest
from test_launch import SCRIPT, arguments  # noqa: F401  (a fixture)

pytestmark = pytest.mark.sampled

SENTENCE = "stopped by {} before the first step"

# Every process runs this when it starts. STOP_AT is a rank (- without one), a module that is about to be
# imported or a function that is called, and the signal: the process sends it to itself, a rank to its parent.
STRIKES = """
import os, signal, sys

RANK, WHERE, NAME = os.environ["STOP_AT"].split()

def strike():
    global WHERE
    WHERE = None
    os.kill(os.getppid() if RANK != "-" else os.getpid(), signal.Signals[NAME])

def heard(event, arguments):
    if event == "import" and arguments[0] == WHERE:
        strike()
    elif event == "import" and arguments[0] == "llm_npu.training.model":
        sys.setprofile(called)

def called(frame, event, argument):
    if event == "call" and frame.f_code.co_name == WHERE:
        sys.setprofile(None)
        strike()

if os.environ.get("PADDLE_TRAINER_ID", "-") == RANK:
    sys.addaudithook(heard)
"""


@pytest.fixture
def stopped_at(run_python, arguments, tmp_path):  # noqa: F811
    """A function that runs the script until it is stopped at WHERE."""
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/sitecustomize.py").write_text(STRIKES)

    def run(where, *flags):
        output = ["--output_dir", tmp_path / "out"]
        return run_python(
            SCRIPT, *arguments, *flags, *output, PYTHONPATH=str(tmp_path / "hooks"), STOP_AT=where
        )

    return run


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "where",
    [
        "rich.console SIGINT",
        "paddle.base.libpaddle SIGINT",  # the library that takes SIGTERM over
        pytest.param("paddle.base.libpaddle SIGTERM", marks=SLOW),
        "paddlenlp.utils.log SIGTERM",  # it has taken it over
        pytest.param("paddlenlp.utils.log SIGINT", marks=SLOW),
        pytest.param("llm_npu.training.trainer SIGTERM", marks=SLOW),
        "_init_weights SIGTERM",  # while the model is built
        pytest.param("_init_weights SIGINT", marks=SLOW),
    ],
)
def test_one_process(stopped_at, where):
    name = where.split()[1]
    done = stopped_at(f"- {where}")
    assert done.returncode == 128 + signal.Signals[name], done.stderr
    assert done.stdout.splitlines()[-1:] == [SENTENCE.format(name)]
    assert done.stdout.count("stopped by") == 1
    assert done.stderr.startswith("VIRTUAL NPU: ") or not done.stderr
    assert done.stderr.count("\n") <= 1, done.stderr  # the banner, and no stack


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("- paddle.distributed.launch.context SIGTERM", marks=SLOW),
        pytest.param("1 numpy SIGTERM", marks=SLOW),
        pytest.param("0 paddlenlp.utils.log SIGTERM", marks=SLOW),
        pytest.param("1 paddlenlp.utils.log SIGINT", marks=SLOW),
        "1 _init_weights SIGTERM",
        pytest.param("0 _init_weights SIGINT", marks=SLOW),
    ],
)
def test_two_processes(stopped_at, tmp_path, where):
    rank, _, name = where.split()
    done = stopped_at(where, "--nproc", "2", "--tensor_parallel_degree", "2")
    assert done.returncode == 128 + signal.Signals[name], done.stderr
    assert done.stdout.splitlines()[-1:] == [SENTENCE.format(name)]
    assert done.stdout.count("stopped by") == 1
    assert done.stderr.startswith("VIRTUAL NPU: ") and "Traceback" not in done.stderr, done.stderr
    if rank != "-":
        log = (tmp_path / "out/log/workerlog.1").read_text()
        assert log.splitlines()[-1:] == [SENTENCE.format(name)]
        assert "Traceback" not in log, log


DEAF = """
import ctypes
from llm_npu.core import program, stopping

stopping.listen("before the first step")
stopping.unshield()

def main(argv):
    mutex = ctypes.create_string_buffer(64)
    wait = ctypes.CDLL(None).pthread_mutex_lock
    wait(mutex)
    print("ready", flush=True)
    wait(mutex)  # for ever, and no signal wakes it

program.run(main, [])
"""


def test_a_process_in_foreign_code_is_ended(start_python):
    process = start_python("-c", DEAF)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == SENTENCE.format("SIGTERM") + "\n"
    assert process.wait() == 143


SWALLOWS = """
import os, signal, time
from llm_npu.core import program, stopping

stopping.listen("before the first step")
stopping.unshield()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except BaseException:
    print("swallowed", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.slow
def test_an_exception_that_is_swallowed_does_not_keep_the_process(run_python):
    done = run_python("-c", SWALLOWS)
    assert (done.returncode, done.stdout) == (143, f"swallowed\n{SENTENCE.format('SIGTERM')}\n")


CLEANS = """
import os, signal, sys
from llm_npu.core import program, stopping

stopping.listen("before the first step")
{}

def main(argv):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # launchers send it more than once
        print("cleaned up")

program.run(main, [])
"""


@pytest.mark.parametrize("open_to_it", [True, False])
def test_what_is_begun_is_cleaned_up(run_python, open_to_it):
    done = run_python("-c", CLEANS.format("stopping.unshield()" if open_to_it else ""))
    sentence = SENTENCE.format("SIGTERM") + "\n"
    assert done.returncode == 143, done.stderr
    assert done.stdout == ("cleaned up\n" + sentence if open_to_it else sentence)
    assert done.stderr == ""


REPLACED = """
import ctypes, os, signal
from llm_npu.core import program, stopping

stopping.listen("before the first step")
ctypes.CDLL(None).signal(signal.SIGTERM, 0)  # as a library would: the default
stopping.unshield()
program.run(lambda argv: os.kill(os.getpid(), signal.SIGTERM), [])
"""


def test_handlers_that_a_library_has_replaced_are_back(run_python):
    done = run_python("-c", REPLACED)
    assert (done.returncode, done.stdout) == (143, SENTENCE.format("SIGTERM") + "\n")


IGNORED = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts a job behind it
from llm_npu.core import stopping

stopping.listen("before the first step")
os.kill(os.getpid(), signal.SIGINT)
stopping.unshield()
os.kill(os.getpid(), signal.SIGINT)
print("goes on")
"""


def test_a_signal_that_is_ignored_stays_ignored(run_python):
    done = run_python("-c", IGNORED)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
