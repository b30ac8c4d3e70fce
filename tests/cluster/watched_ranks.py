"""Ranks on several machines that train nothing: what watches the machines of a run is tested with them."""

import subprocess
import sys
import time

PROGRAM = """
import os, sys, time
from pathlib import Path
from llm_npu.core import program
from llm_npu.launch import watch_machines

def main(argv):
    with watch_machines():
        print("watched", flush=True)
        ends = [Path(argv[0]), Path(argv[0] + os.environ["PADDLE_TRAINER_ID"])]
        while not any(end.exists() for end in ends):
            time.sleep(0.05)
        if any(end.exists() and end.read_text() == "fail" for end in ends):
            raise KeyError("made up")
    return 0

sys.exit(program.run(main, sys.argv[1:]))
"""
LIMIT = 10.0  # seconds


class Ranks:
    """Two ranks on the first machine, and one on each other; the file ``end`` ends them, ``end_of`` one.

    The ranks ``absent`` are not started.
    """

    def __init__(self, machines, folder, port=7000, absent=(), **environment):
        self.folder, self.environment = folder, environment
        self.machines, self.end = machines, folder / "end"
        hosts = [machines[0], *machines]
        self.endpoints = [f"{machine.address}:{port + rank}" for rank, machine in enumerate(hosts)]
        self.logs = [folder / f"log{rank}" for rank in range(len(hosts))]
        self.hosts, self.processes = hosts, {}
        for rank in range(len(hosts)):
            if rank not in absent:
                self.start(rank)

    def start(self, rank, **environment):
        self.processes[rank] = self.hosts[rank].start(
            [sys.executable, "-c", PROGRAM, self.end],
            self.logs[rank],
            self.folder,
            PADDLE_TRAINER_ENDPOINTS=",".join(self.endpoints),
            PADDLE_TRAINER_ID=str(rank),
            PADDLE_TRAINERS_NUM=str(len(self.hosts)),
            **{**self.environment, **environment},
        )

    def end_of(self, rank):
        return self.end.with_name(f"{self.end.name}{rank}")

    def of(self, machine):
        return [0, 1] if machine == 0 else [machine + 1]

    def wait_until_watched(self):
        while not all("watched" in log.read_text() for log in self.logs):
            assert all(process.poll() is None for process in self.processes.values()), self.text()
            time.sleep(0.05)
        while self.listening().count("ESTAB") < len(self.logs):  # by all members
            time.sleep(0.05)

    def wait_until_listening(self):
        """Until rank 0 listens on its endpoint."""
        while "LISTEN" not in self.listening():
            assert all(process.poll() is None for process in self.processes.values()), self.text()
            time.sleep(0.05)

    def listening(self):
        """The sockets of the first machine, of which rank 0's own endpoint has one for each rank."""
        space = self.machines[0].namespace
        command = ["ip", "netns", "exec", space, "ss", "-Htan", "sport", "=", ":7000"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def codes(self, ranks, timeout=LIMIT):
        return [self.processes[rank].wait(timeout) for rank in ranks]

    def text(self):
        return "\n".join(self.logs[rank].read_text() for rank in self.processes)
