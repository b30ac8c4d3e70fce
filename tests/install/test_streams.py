"""stdout and stderr that outlive their reader."""

import os
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = pytest.mark.sampled

PROGRAM = """
import os, subprocess, sys
from paddle_fused import command_line

def main(argv):
    for number in range(20000):
        print("line", number, flush=number % 7 == 0)
    os.write(1, b"from C++")
    subprocess.run([sys.executable, "-Sc", "print('child')"], check=True)
    print("reached the end", file=sys.stderr)
    return int(argv[0])

sys.exit(command_line.run(main, sys.argv[1:]))
"""


def run(*argv, **fields) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *argv],
        env=environment,
        text=True,
        timeout=300,
        **{"stderr": subprocess.PIPE, **fields},
    )


@pytest.fixture
def unread():
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_a_command_outlives_the_reader_of_its_output(unread, options):
    done = run(*options, "-c", PROGRAM, "3", stdout=unread)
    assert (done.returncode, done.stderr) == (3, "reached the end\n")


@pytest.mark.slow
def test_nobody_reads_the_errors_either(unread):
    assert run("-c", PROGRAM, "3", stdout=unread, stderr=unread).returncode == 3


@pytest.mark.slow
def test_a_full_disk_is_said_and_is_no_success():
    with open("/dev/full", "w") as full:
        done = run("-c", PROGRAM, "0", stdout=full)
    assert done.returncode == 1
    warning, end = done.stderr.splitlines()
    assert warning.startswith("stdout: No space left on device") and end == "reached the end"


@pytest.mark.slow
def test_output_that_is_closed_stays_closed():
    done = run(
        "-c",
        PROGRAM.replace("os.write", "# ").replace("subprocess.run", "# "),
        "3",
        preexec_fn=lambda: os.close(1),
    )
    assert (done.returncode, done.stderr) == (3, "reached the end\n")


@pytest.mark.slow
def test_what_a_reader_reads_is_unchanged():
    done = run("-c", PROGRAM, "0", stdout=subprocess.PIPE)
    lines = [*(f"line {number}" for number in range(20000)), "from C++child"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "paddle_fused.info"),
        ("-m", "paddle_fused.info", "--help"),
        ("-m", "paddle_fused.parity", "swiglu"),
        ("-m", "paddle_fused.contracts"),
        ("-m", "paddle_fused.instruction_set"),
        ("-m", "virtual_npu", "--env"),
        ("-m", "llm_npu", "doctor", "--device", "cpu"),
        ("-m", "llm_npu.formers", "--help"),
        ("-m", "llm_npu.profiling", "report", "--help"),
        ("-m", "benchmarks", "--help"),
        ("scripts/prepare_data.py", "--help"),
    ],
    ids=" ".join,
)
def test_commands(unread, command):
    read = run(*command, stdout=subprocess.PIPE, cwd=ROOT)
    done = run(*command, stdout=unread, cwd=ROOT)
    assert done.returncode == read.returncode, done.stderr
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", b"\\xb1 \\u6570 \\udcff"),
        ("gbk:strict", "± 数 \\udcff".encode("gbk")),
        ("latin-1:surrogateescape", b"\xb1 \\u6570 \\udcff"),
        ("utf-8", "± 数 \\udcff".encode()),
        ("ascii:replace", b"? ? ?"),
    ],
)
@pytest.mark.sampled(2)
def test_text_that_the_encoding_lacks_becomes_escapes(encoding, printed):
    program = (
        "import sys\nfrom paddle_fused import command_line\n"
        "sys.exit(command_line.run(lambda argv: print('± 数 \\udcff'), []))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, timeout=300, stdout=subprocess.PIPE
    )
    assert (done.returncode, done.stdout) == (0, printed + b"\n")
