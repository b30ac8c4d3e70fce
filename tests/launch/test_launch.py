"""--nproc: several ranks as a person at the terminal sees them, and who is told to end when."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import run_inputs
from places import ROOT

from llm_npu import config, launch
from llm_npu.device import Device
from llm_npu.launch import fake_process_group, supervisor
from llm_npu.training import checkpoint, metrics

SCRIPT = ROOT / "scripts/run_llama_npu.py"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    return run_inputs.words(run_inputs.short_run(tmp_path_factory.mktemp("inputs")))


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes that a launcher has started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
def test_ctrl_c_stops_both_ranks_after_one_checkpoint(start_python, arguments, tmp_path):
    out = tmp_path / "out"
    sharing = [
        "--nproc",
        "2",
        "--tensor_parallel_degree",
        "2",
        "--max_steps",
        "100000",
        "--disable_tqdm",
        "true",
    ]
    process = start_python(SCRIPT, *arguments, *sharing, "--output_dir", out)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 3/"):
            break
    assert len(ranks_of(process)) == 2, process.stderr.read()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=ranks.TIMEOUT)
    lines += stdout.splitlines(keepends=True)
    assert process.returncode == 130, stderr
    assert lines[0].startswith("device   npu (virtual)")  # rank 0 alone, from its first line on
    assert sum(line.startswith("device") for line in lines) == 1
    assert any(line.startswith("ranks    2 processes: tensor parallel 2;") for line in lines)
    assert sum(line.startswith("dtypes   clean: ") for line in lines) == 2  # before the first step, and after
    stopped = [line for line in lines if line.startswith("stopped by SIGINT after step ")]
    (only,) = checkpoint.complete(out)
    assert stopped and f"after step {checkpoint.verify(only)};" in stopped[0]
    assert stderr.startswith("VIRTUAL NPU: ") and stderr.count("\n") == 1, stderr
    assert "step 3/" in (out / "log/workerlog.1").read_text()
    steps = [record["step"] for record in metrics.read(out / metrics.FILE) if "loss" in record]
    assert steps == list(range(1, checkpoint.step_of(only) + 1))


@pytest.mark.slow
def test_what_both_ranks_refuse_is_said_once(run_python, arguments, tmp_path):
    flags = ["--nproc", "2", "--tensor_parallel_degree", "3"]
    done = run_python(SCRIPT, *arguments, *flags, "--output_dir", tmp_path / "out")
    assert done.returncode == 2
    sentence = "error: --tensor_parallel_degree 3 does not divide the 2 processes"
    assert done.stderr.count("error: ") == done.stderr.count(sentence) == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_paddles_launcher_starts_the_script(run_python, arguments, tmp_path):
    """With --nproc_per_node it sees no plugin, and prepares for gloo; the script puts that right."""
    begin = [
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        "2",
        "--log_dir",
        tmp_path / "log",
        SCRIPT,
    ]
    done = run_python(*begin, *arguments, "--max_steps", "2", "--output_dir", tmp_path / "out")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "data parallel 2" in (tmp_path / "log/workerlog.0").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("front_end", ["virtual_npu", "llm_npu.formers"])
def test_paddles_launcher_sees_the_devices(run_python, front_end, tmp_path):
    """That of Paddle 3.0 by PADDLE_XCCL_BACKEND only."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os; print(os.environ['FLAGS_selected_npus'], os.environ['PADDLE_DISTRI_BACKEND'])"
    )
    launcher = ["-m", "paddle.distributed.launch", "--devices", "0,1", "--log_dir", tmp_path, program]
    none = dict.fromkeys(("CUSTOM_DEVICE_ROOT", "PADDLE_XCCL_BACKEND"))
    done = run_python("-m", front_end, *launcher, **none)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [(tmp_path / f"workerlog.{rank}").read_text().split() for rank in (0, 1)] == [
        ["0", "xccl"],
        ["1", "xccl"],
    ]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--nproc", "2", "--device", "cpu"], "Paddle's gloo"),
        (["--nproc", "2", "--device", "npu:1"], "npu:1 selects one device, but 2 processes "),
        (["--nproc", "17"], "17 processes need a device each, "),
        (["--nproc", "two"], "--nproc: 'two' is not a whole number"),
        (["--nproc", "0"], "--nproc is 0, but must be 1 or more"),
        (["--nproc", "2", "--max_restarts", "-1"], "--max_restarts is -1, but must be 0 or more"),
    ],
)
def test_what_cannot_be_started_is_refused(run_python, flags, sentence):
    done = run_python(SCRIPT, *flags)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert done.stdout == ""


def test_a_rank_checks_what_its_launcher_says(monkeypatch):
    for name, value in fake_process_group.environment(1, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PADDLE_RANK_IN_NODE", "1")
    for name in ("FLAGS_selected_npus", "PADDLE_DISTRI_BACKEND", "PADDLE_XCCL_BACKEND"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("PADDLE_DISTRI_BACKEND", "gloo")
    early = config.read(["--nproc", "2"]).early
    assert early.is_rank
    launch.prepare_rank(early, Device("npu", "virtual", ""))
    chosen = {name: os.environ[name] for name in ("FLAGS_selected_npus", "PADDLE_DISTRI_BACKEND")}
    assert chosen == {"FLAGS_selected_npus": "1", "PADDLE_DISTRI_BACKEND": "xccl"}
    with pytest.raises(ValueError, match=r"--nproc is 3, but paddle.distributed.launch has started 2"):
        launch.prepare_rank(config.Early((), nproc=3, is_rank=True), Device("npu", "virtual", ""))
    with pytest.raises(ValueError, match="gloo"):
        launch.prepare_rank(config.Early((), is_rank=True), Device("cpu", "cpu", ""))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=r"2 processes .* 0 are visible"):
        launch.prepare_rank(config.Early((), is_rank=True), Device("npu", "card", ""))


def test_what_is_read_early(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("nproc: 4\ndeterministic: true\n")

    def read(argv):
        return config.read(argv).early

    assert [read(argv).nproc for argv in ([], [str(file)], [str(file), "--nproc=2"])] == [1, 4, 2]
    switch = "--deterministic"
    on = ([switch], [switch, "true"], [switch, "--bf16"], [str(file)])
    assert all(read(argv).deterministic for argv in on)
    assert not read([]).deterministic and not read([str(file), switch, "false"]).deterministic


STORE = """
import os, sys
from paddle.base import core
core.TCPStore("127.0.0.1", int(sys.argv[1]), True, 1).set("key", "value")
os._exit(0)  # past the end of Paddle's threads, which is not what this is about
"""


@pytest.mark.slow
def test_the_port_of_the_store_is_kept_for_it(run_python):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
        with pytest.raises(OSError, match="in use"), launch.reserved_port(port):
            pass
    with launch.reserved_port(port):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        done = run_python("-c", STORE, port)
    assert done.returncode == 0, done.stderr


class Ranks:
    """Processes of a line of Python each, watched as ranks are."""

    def __init__(self, folder: Path, *programs: str):
        self.logs = folder
        self.processes = []
        for rank, program in enumerate(programs):
            with (folder / f"workerlog.{rank}").open("w") as log:
                command = [sys.executable, "-c", program]
                nothing = subprocess.DEVNULL
                self.processes.append(subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log))

    def watch(self) -> int:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return supervisor.Supervisor(self.logs).until_end(self.processes).code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


WAITS = "import signal; signal.pause()"
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""


def test_the_first_failure_ends_the_others_and_is_shown(tmp_path, capfd):
    started = Ranks(tmp_path, WAITS, "import sys; print('the reason'); sys.exit(7)", WAITS)
    assert started.watch() == 7
    assert [process.returncode for process in started.processes] == [-signal.SIGTERM, 7, -signal.SIGTERM]
    shown = capfd.readouterr().err
    assert "rank 1 ended with exit code 7" in shown and "the reason" in shown


def test_a_killed_rank_is_named(tmp_path, capfd):
    started = Ranks(tmp_path, WAITS, "import os; os.kill(os.getpid(), 9)")
    assert started.watch() == 137
    assert "rank 1 was killed by SIGKILL" in capfd.readouterr().err


def test_a_rank_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.5)
    started = Ranks(tmp_path, DEAF, "import sys; sys.stdin.read(); sys.exit(1)")
    assert started.watch() == 1
    assert started.processes[0].returncode in (-signal.SIGKILL, -signal.SIGTERM)


def test_a_stopped_rank_is_killed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 600)
    started = Ranks(tmp_path, WAITS, "import sys; sys.stdin.read(); sys.exit(1)")
    started.processes[0].send_signal(signal.SIGSTOP)
    os.waitpid(started.processes[0].pid, os.WUNTRACED)  # it has stopped
    assert started.watch() == 1
    assert started.processes[0].returncode == -signal.SIGKILL


def test_a_rank_that_does_not_go_on_is_lost(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(supervisor, "STOPPED_LIMIT", 0.2)
    started = Ranks(tmp_path, WAITS, WAITS)
    started.processes[1].send_signal(signal.SIGSTOP)
    os.waitpid(started.processes[1].pid, os.WUNTRACED)
    assert started.watch() == 128 + signal.SIGSTOP
    assert [process.returncode for process in started.processes] == [-signal.SIGTERM, -signal.SIGKILL]
    error = capfd.readouterr().err
    assert all(key in error for key in ("rank 1 was stopped", "0.2 seconds"))


def test_the_bound_on_what_a_lost_rank_costs():
    """All waits of the launcher together, to which a busy machine adds what it takes."""
    assert supervisor.STOPPED_LIMIT + supervisor.POLL_INTERVAL + supervisor.GRACE < 10
    assert 2 * supervisor.GRACE < 10


RESTARTED = """
import os, sys
from pathlib import Path

rank, starts = os.environ["PADDLE_TRAINER_ID"], Path(sys.argv[-1])
with (starts / rank).open("a") as stream:
    stream.write("started " + os.environ["PADDLE_MASTER"].rpartition(":")[0] + "\\n")
if rank == "1" and (starts / rank).read_text().count("started") <= {failures}:
    os.kill(os.getpid(), 9)
"""
START = """
import socket, sys
socket.gethostbyname = lambda name: "198.51.100.7"  # the machine's name often has an address outside
from pathlib import Path
from llm_npu import launch
from llm_npu.config import Early
from llm_npu.device import Device

flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
restarts, out = int(flags.get("--max_restarts", 0)), Path(flags["--output_dir"])
early = Early(tuple(sys.argv[2:]), nproc=int(flags["--nproc"]), max_restarts=restarts, output_dir=out)
sys.exit(launch.start([sys.argv[1]], early, Device("npu", "virtual", "")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "code", "starts"), [(1, 0, 2), (9, 137, 3)])
def test_a_run_that_lost_a_rank_starts_again(run_program, tmp_path, failures, code, starts):
    script = tmp_path / "script.py"
    script.write_text(RESTARTED.format(failures=failures))
    flags = ["--nproc", "2", "--max_restarts", "2", "--output_dir", str(tmp_path / "out"), str(tmp_path)]
    arguments = f"import sys; sys.argv[1:] = {[str(script), *flags]}\n"
    done = run_program(arguments + START)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("rank 1 was killed by SIGKILL") == min(failures, 3)
    assert [f"restart  {number} of 2" in done.stderr for number in (1, 2)] == [True, failures > 1]
    assert (tmp_path / "1").read_text() == starts * "started 127.0.0.1\n"


REFUSES = """
import atexit, os, signal, sys
from llm_npu.core import program
from llm_npu.core.errors import UserError

def main(argv):
    if os.environ["PADDLE_TRAINER_ID"] == "0":
        atexit.register(signal.pause)  # it takes its time to end
    raise UserError("the input is bad: give another")

sys.exit(program.run(main, []))
"""


@pytest.mark.slow
def test_what_a_rank_refuses_is_said_once_though_the_first_is_slow_to_end(run_program, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(REFUSES)
    arguments = f"import sys; sys.argv[1:] = {[str(script), '--nproc', '2', '--output_dir', str(tmp_path)]}\n"
    soon = "from llm_npu.launch import supervisor; supervisor.GRACE = 0.5\n"
    done = run_program(arguments + soon + START)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[1:] == ["error: the input is bad: give another"]  # behind the banner


TAKES_THE_KEY = """
import os

assert os.environ["ACCESS_KEY"]
print("rank", os.environ["PADDLE_TRAINER_ID"])
"""


@pytest.mark.slow
def test_the_environment_of_the_ranks_is_written_nowhere(run_program, tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(TAKES_THE_KEY)
    arguments = f"import sys; sys.argv[1:] = {[str(script), '--nproc', '2', '--output_dir', str(out)]}\n"
    done = run_program(arguments + START, ACCESS_KEY="open sesame")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rank 0\n"
    assert {file.name: file.read_text() for file in (out / "log").iterdir()} == {"workerlog.1": "rank 1\n"}


def test_a_restart_needs_checkpoints_to_go_on_from():
    with pytest.raises(ValueError, match=r"--max_restarts is 2, but .* set both"):
        config.parse(["--nproc", "2", "--max_restarts", "2"])
    arguments = config.read(["--max_restarts", "2", "--resume_from_checkpoint", "auto"])
    assert "--nproc" in dict(arguments.ineffective())["max_restarts"]


FAILS_AT_A_SIGNAL = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
status = f"/proc/{os.getppid()}/status"
caught = lambda: int(open(status).read().partition("SigCgt:")[2].split()[0], 16)
while not caught() >> (signal.SIGTERM - 1) & 1:  # until the watch listens
    time.sleep(0.01)
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""


def test_after_a_signal_a_rank_that_fails_ends_the_others(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.5)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an earlier test's handler would pass for the watch's
    started = Ranks(tmp_path, f"import signal; signal.alarm(300){DEAF}", FAILS_AT_A_SIGNAL)
    assert started.watch() == 7
    assert started.processes[0].returncode in (-signal.SIGKILL, -signal.SIGTERM)
    assert "rank 1 ended with exit code 7" in capfd.readouterr().err


def test_all_done_is_done(tmp_path, capfd):
    assert Ranks(tmp_path, "pass", "pass").watch() == 0
    assert capfd.readouterr().err == ""
