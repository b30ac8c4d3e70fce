"""Launchers that end while the others wait, and are started again; on three machines, with a small script."""

import json
import signal
import subprocess
import sys
import time

import pytest
import virtual_machines

from llm_npu.cluster import rendezvous

pytestmark = pytest.mark.slow
MASTER = "10.77.0.1:8090"
START = 90  # seconds that a launcher needs at most until it waits, on a busy host
PROGRAM = """
import os, pathlib, sys, time
print("rank", os.environ["PADDLE_TRAINER_ID"], "of", os.environ["PADDLE_TRAINERS_NUM"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


class Launchers:
    """Each has ``machines`` machines to meet; the ranks end when the file ``end`` is there."""

    def __init__(self, apart, folder, machines=3):
        self.apart, self.folder, self.machines, self.end = apart, folder, machines, folder / "end"
        self.script = folder / "program.py"
        self.script.write_text(PROGRAM)

    def start(self, machine, number):
        """The process, and its output."""
        here = self.apart[machine]
        log = self.folder / f"terminal.{machine}.{len(here.started)}"
        argv = [sys.executable, "-m", rendezvous.__name__, "--nproc_per_node", "1"]
        argv += ["--log_dir", self.folder / f"log{number}", self.script, self.end]
        place = {"NNODES": str(self.machines), "NODE_RANK": str(number)}
        place |= {"MASTER": MASTER, "HOST_IP": here.address, "RDZV_TIMEOUT": "120"}
        return here.start(argv, log, virtual_machines.ROOT, **place), log

    def wait_until_told(self, numbers):
        """Until the master has been told these NODE_RANKs, and no others."""
        while (counts := self.counts_sent()) != numbers:
            assert time.monotonic() < self.limit, counts
            time.sleep(0.2)

    def counts_sent(self):
        """Nothing while the master does not answer."""
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
        within = ["ip", "netns", "exec", self.apart[0].namespace]
        command = [*within, sys.executable, "-c", program, f"http://{MASTER}/default/info"]
        answer = subprocess.run(command, capture_output=True, text=True).stdout
        return sorted(int(key.rpartition("/")[2]) for key in json.loads(answer or "{}"))

    def wait_until_met(self, *started):
        """Until all ranks run."""
        logs = [self.folder / f"log{number}/workerlog.0" for number in range(self.machines)]
        while not all(log.exists() and "rank" in log.read_text() for log in logs):
            ended = [log.read_text() for process, log in started if process.poll() is not None]
            assert not ended and time.monotonic() < self.limit, ended
            time.sleep(0.05)
        first_lines = [log.read_text().splitlines()[0] for log in logs]
        assert first_lines == [f"rank {number} of {self.machines}" for number in range(self.machines)]

    def finish(self, *started):
        self.end.write_text("")
        for process, log in started:
            assert process.wait(START) == 0, log.read_text()


@pytest.fixture
def launchers(three_apart, tmp_path):
    new_launchers = Launchers(three_apart, tmp_path)
    new_launchers.limit = time.monotonic() + 3 * START
    return new_launchers


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_number_is_free_again_when_its_launcher_has_ended(launchers, end):
    """The second machine first takes the third one's number."""
    first, (mistaken, _) = launchers.start(0, 0), launchers.start(1, 2)
    launchers.wait_until_told([0, 2])
    mistaken.send_signal(end)
    assert mistaken.wait() == (130 if end == signal.SIGINT else -signal.SIGKILL)
    if end == signal.SIGINT:
        assert launchers.counts_sent() == [0]
    launchers.wait_until_told([0])
    all_three = [first, launchers.start(1, 1), launchers.start(2, 2)]
    launchers.wait_until_met(*all_three)
    launchers.finish(*all_three)


@pytest.mark.parametrize("third_comes_first", [True, False])
def test_a_launcher_that_is_killed_and_started_again_takes_its_own_place(launchers, third_comes_first):
    first, (killed, _) = launchers.start(0, 0), launchers.start(1, 1)
    launchers.wait_until_told([0, 1])
    killed.kill()
    killed.wait()
    all_three = [first, launchers.start(2, 2)]
    if third_comes_first:  # it does not meet the killed one
        launchers.wait_until_told([0, 2])
    all_three.append(launchers.start(1, 1))
    launchers.wait_until_met(*all_three)
    launchers.finish(*all_three)


@pytest.mark.parametrize("machine", [1, 2])
def test_a_launcher_that_comes_when_all_have_met_is_refused(launchers, machine):
    """On the same machine as the one that has its number, and on another; the others go on."""
    launchers.machines = 2
    two = [launchers.start(0, 0), launchers.start(1, 1)]
    launchers.wait_until_met(*two)
    late, log = launchers.start(machine, 1)
    assert late.wait(START) == 2, log.read_text()
    error = log.read_text().splitlines()[-1]
    assert error.startswith("error: the rendezvous at 10.77.0.1:8090 ") and "NODE_RANK 1" in error
    launchers.finish(*two)
