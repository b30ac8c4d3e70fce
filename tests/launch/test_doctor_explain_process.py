"""``llm-npu doctor --explain`` as a user runs it, and what the trainer says of its own failures."""

import io
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import document_commands
import peak_memory
import pytest
from doctor_host import write
from places import ROOT
from test_launch import WAITS, Ranks

from llm_npu.doctor import explain
from llm_npu.launch import supervisor

pytestmark = pytest.mark.sampled

OOM = "RuntimeError: NPU out of memory. Tried to allocate 30.00 MiB (NPU 3; 60.96 GiB total capacity)\n"
STEP = "step 5/100: loss 5.8154  lr 1.00e-04  norm 1.52  1,234 tokens/s  data 1%  1,024 MiB\n"
COMMANDS = [
    command for command in document_commands.commands(ROOT / "docs/doctor.md") if "--explain" in command.text
]


@pytest.fixture
def doctor(run_python):
    """A function that runs it in a process of its own."""
    return lambda *arguments, **variables: run_python("-m", "llm_npu", "doctor", *arguments, **variables)


def test_a_log(doctor, tmp_path):
    log = tmp_path / "run.log"
    log.write_text(STEP + OOM)
    done = doctor("--explain", log)
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.startswith("cause    device-memory, line 2\nsaid     RuntimeError: NPU out of memory.")
    done = doctor("--json", "--explain", log)
    assert done.returncode == 1 and json.loads(done.stdout)["failures"][0]["name"] == "device-memory"


def test_stdin():
    command = [sys.executable, "-m", "llm_npu", "doctor", "--explain", "-"]
    done = subprocess.run(command, input=OOM.encode(), capture_output=True, cwd=ROOT)
    assert done.returncode == 1 and done.stdout.startswith(b"cause    device-memory, line 1\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.log", "No such file"), (".", "Is a directory"), ("", "No such file"), ("x" * 300, "too long")],
)
def test_what_cannot_be_read(doctor, tmp_path, name, words):
    done = doctor("--explain", name, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "content", [b"", b"\n\n\n", b"\0" * 5000, random.Random(5).randbytes(3 << 20), STEP.encode() * 100]
)
def test_what_shows_nothing(doctor, tmp_path, content):
    (tmp_path / "log").write_bytes(content)
    done = doctor("--explain", tmp_path / "log")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("unknown  ")


@pytest.mark.slow
def test_a_failure_between_garbage():
    rubbish = random.Random(6).randbytes(2 << 20)
    (named,) = explain.explain(io.BytesIO(rubbish + b"\n" + OOM.encode() + rubbish)).named
    assert named.failure.name == "device-memory" and named.text.startswith("RuntimeError")
    assert named.line == rubbish.count(b"\n") + 2


def test_colours_escaped_lines_and_lines_without_end():
    coloured = OOM.replace("out of memory", "\x1b[31mout of memory\x1b[0m")
    escaped = repr({"error": STEP + OOM})
    endless = "x" * (3 << 20) + " " + OOM.strip() + " " + "y" * (3 << 20)
    for log in (coloured, escaped, endless, OOM.replace("\n", "\r\n"), OOM.strip()):
        (named,) = explain.explain_text(log).named
        assert named.failure.name == "device-memory" and named.line == 1 and len(named.text) <= 240


class Stream(io.RawIOBase):
    """``size`` bytes of a log, or of one line, that are nowhere together."""

    def __init__(self, size: int, block: bytes):
        self.left, self.block = size, block

    def read(self, size: int = -1) -> bytes:
        taken = self.block[: min(size, self.left)]
        self.left -= len(taken)
        return taken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gib", "block"),
    [
        (0.1, STEP.encode() * 12000),
        (0.03, OOM.encode() * 12000),
        (0.02, b"error " * 200000),
        (0.02, b"".join(b"rtX failed, reason=[%d]\n" % number for number in range(40000))),
        pytest.param(4, STEP.encode() * 12000, marks=pytest.mark.slow),
    ],
)
def test_a_large_log_takes_little_memory(gib, block):
    log = Stream(int(gib * 2**30), block)
    assert peak_memory.grown_by(lambda: explain.explain(log)) < 32 << 20
    assert log.left == 0


@pytest.mark.slow
def test_a_gigabyte_takes_seconds(doctor, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        log.truncate(1 << 30)  # zeros that take no disk
        log.seek(0, os.SEEK_END)
        log.write(b"\n" + OOM.encode())
    began = time.monotonic()
    done = doctor("--explain", tmp_path / "log")
    assert done.stdout.startswith("cause    device-memory, line 2") and time.monotonic() - began < 60


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.text)
def test_a_command_of_the_document(command):
    text = command.text.replace("llm-npu", f"{shlex.quote(sys.executable)} -m llm_npu")
    done = subprocess.run(text, shell=True, cwd=ROOT, capture_output=True)
    assert done.returncode in command.exit_codes, done.stderr
    assert not document_commands.missing(command.shown, done.stdout.decode())


def test_the_document_has_commands():
    assert len(COMMANDS) >= 2 and any(command.shown for command in COMMANDS)


SCRIPT = ROOT / "scripts/run_llama_npu.py"
NO_LIBRARY = "libascendcl.so: cannot open shared object file: No such file or directory"


def broken_paddle(folder: Path, error: str) -> str:
    """A PYTHONPATH with a package ``paddle`` that cannot be imported."""
    write(folder / "paddle/__init__.py", f"raise {error}\n")
    return os.pathsep.join([str(folder), str(ROOT)])


@pytest.mark.slow
def test_the_trainer_explains_a_traceback(run_python, tmp_path):
    path = broken_paddle(tmp_path, f"ImportError({NO_LIBRARY!r})")
    done = run_python(SCRIPT, "--device", "cpu", "--output_dir", tmp_path, PYTHONPATH=path)
    assert done.returncode == 1
    trace, _, explained = done.stderr.partition("cause    cann-library-missing\n")
    assert trace.rstrip().endswith(f"ImportError: {NO_LIBRARY}")
    assert explained.startswith("meaning  ") and "\nlikely   1. " in explained and "\nsource   " in explained


def test_the_trainer_explains_what_paddle_refuses(run_python, tmp_path):
    sentence = f"(InvalidArgument) Fail to open library: libpaddle-custom-npu.so with error: {NO_LIBRARY}"
    path = broken_paddle(tmp_path, f"ValueError({sentence!r})")
    done = run_python(SCRIPT, "--device", "cpu", "--output_dir", tmp_path, PYTHONPATH=path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: {sentence}\ncause    cann-library-missing\nmeaning  ")


@pytest.mark.slow
def test_the_trainers_own_sentences_stay_alone(run_python, tmp_path):
    done = run_python(SCRIPT, "--device", "cpu", "--no_such_argument", "1", "--output_dir", tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def watched(logs: Ranks) -> int:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return supervisor.Supervisor(logs.logs, explain.of_rank).until_end(logs.processes).code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_ranks_log_is_explained(tmp_path, capfd):
    ranks = Ranks(tmp_path, WAITS, f"import sys; print({OOM!r}); sys.exit(1)")
    assert watched(ranks) == 1
    errors = capfd.readouterr().err
    assert (
        errors.index("rank 1 ended with exit code 1")
        < errors.index("Tried to")
        < errors.index("device-memory")
    )


def test_a_rank_that_was_killed_is_explained(tmp_path, capfd):
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        ranks = Ranks(folder, WAITS, WAITS)
        ranks.processes[rank].kill()
        assert watched(ranks) == 137
        errors = capfd.readouterr().err
        assert f"rank {rank} was killed by SIGKILL" in errors and "\nfollows  killed\n" in errors
        assert "dmesg" in errors


def test_a_rank_that_explained_itself_is_not_explained_again(tmp_path, capfd):
    program = f"from llm_npu.doctor import explain; explain.after_tracebacks(); raise RuntimeError({OOM!r})"
    assert watched(Ranks(tmp_path, WAITS, program)) == 1
    assert capfd.readouterr().err.count("cause    device-memory") == 1


def test_what_an_earlier_start_wrote_is_not_explained(tmp_path):
    log = tmp_path / "workerlog.1"
    log.write_text(OOM)
    assert explain.of_rank(log, 0, "").startswith("cause    device-memory")
    assert explain.of_rank(log, log.stat().st_size, "rank 1 ended with exit code 1") == ""
    assert explain.of_rank(tmp_path / "none", 0, "rank 1 was killed by SIGKILL").startswith("follows  killed")
