"""examples/cluster/slurm.sbatch under a Slurm of two nodes, each a machine of virtual_machines."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
import run_inputs
import virtual_machines

from llm_npu.training import metrics

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PACKAGES = "Debian's slurmctld, slurmd, slurm-client and munge"
RANKS = 2  # on each node
STEPS = 3
# No control groups, which belong to the host; the daemons run as the user of the test.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={first}
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Cluster:
    """A running Slurm: its configuration, its logs and the machine that jobs are submitted from."""

    def __init__(self, machines, folder):
        self.machines, self.folder = machines, folder
        self.conf, self.output = folder / "slurm.conf", folder / "job.out"
        nodes = (
            f"NodeName={machine.name} NodeAddr={machine.name} CPUs={os.cpu_count()}" for machine in machines
        )
        self.conf.write_text(
            CONFIGURATION.format(first=machines[0].name, folder=folder, nodes="\n".join(nodes))
        )
        folder.chmod(0o755)  # munged wants its socket to be reachable by all users
        for machine in machines:
            (folder / machine.name).mkdir()
        # ip netns exec hides the control groups, which slurmd would look for.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
        files |= {"seed-file": "seed"}
        options = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
        self.start(0, "munged", "--foreground", *options)
        self.wait_for(lambda: (folder / "munge.socket").exists(), "munged listens")
        self.start(0, "slurmctld", "-D")
        for number in range(len(machines)):
            self.start(number, "slurmd", "-D")
        self.wait_for(lambda: self.states() == ["idle"] * len(machines), "all nodes are idle")

    def start(self, machine, *command, cwd=None, **environment):
        log = self.folder / f"{command[0]}{machine}.log"
        return self.machines[machine].start(
            command, log, cwd or self.folder, SLURM_CONF=str(self.conf), **environment
        )

    def states(self):
        """The state of each node, or nothing while the controller does not answer."""
        space = ["ip", "netns", "exec", self.machines[0].namespace]
        command = [*space, "sinfo", "--noheader", "--Node", "--format=%T"]
        answer = subprocess.run(
            command, env={**os.environ, "SLURM_CONF": str(self.conf)}, capture_output=True, text=True
        )
        return answer.stdout.split()

    def wait_for(self, condition, what, timeout=30):
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"not within {timeout} s: {what}\n{self.text()}"
            time.sleep(0.1)

    def submit(self, arguments):
        """``sbatch --wait`` of the example: its exit code is the job's, whose output is in ``output``."""
        script = ["examples/cluster/slurm.sbatch", *arguments]
        return self.start(
            0,
            *["sbatch", "--wait", "--nodes=2", f"--output={self.output}", *script],
            cwd=virtual_machines.ROOT,
            PATH=virtual_machines.PATH,
            NPROC_PER_NODE=str(RANKS),
            LOG_DIR=str(self.folder),
        )

    def wait(self, job, timeout):
        try:
            return job.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended within {timeout} s\n{self.text()}") from None

    def ranks(self):
        """{rank: process id} of what runs now."""
        pids = {}
        for machine in self.machines:
            for pid in machine.processes():
                with suppress(OSError):  # it has ended
                    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
                    if "run_llama_npu.py" in Path(f"/proc/{pid}/cmdline").read_text():
                        pids |= {
                            int(value): pid
                            for name, _, value in (word.partition("=") for word in environment)
                            if name == "PADDLE_TRAINER_ID"
                        }
        return pids

    def text(self):
        files = sorted([*self.folder.glob("*.log"), self.output, *self.folder.rglob("workerlog.*")])
        return "\n".join(
            f"---- {file.relative_to(self.folder)} ----\n{file.read_text(errors='replace')[-3000:]}"
            for file in files
            if file.exists()
        )


@pytest.fixture
def cluster(two_machines):
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: {PACKAGES} are not installed")
    if two_machines[0].namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    # The path of a socket may have 107 characters, which pytest's folders can exceed.
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:
        yield Cluster(two_machines, Path(folder))


def arguments(folder, steps):
    fields = {"per_device_train_batch_size": 1, "max_steps": steps, "output_dir": folder / "out"}
    return run_inputs.words(run_inputs.short_run(folder, **fields))


@pytest.mark.slow
def test_a_job_trains_on_both_nodes(cluster, tmp_path):
    job = cluster.submit(arguments(tmp_path, STEPS))
    assert cluster.wait(job, 240) == 0, cluster.text()
    records = metrics.read(tmp_path / "out" / metrics.FILE)
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3]
    (logs,) = (folder for folder in cluster.folder.iterdir() if folder.name.isdecimal())  # the job's number
    assert sorted(str(log.relative_to(logs)) for log in logs.rglob("workerlog.*")) == [
        f"{node}/workerlog.{rank}" for node in range(2) for rank in range(RANKS)
    ]
    assert "ranks    4 processes: " in (logs / "0/workerlog.0").read_text(), cluster.text()
    for log in logs.rglob("workerlog.*"):
        assert f"step {STEPS}/{STEPS}" in log.read_text(), cluster.text()


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_on_both_nodes(cluster, tmp_path):
    job = cluster.submit(arguments(tmp_path, 100000))
    cluster.wait_for(lambda: "step 2/" in cluster.text(), "the ranks train", 240)
    ranks = cluster.ranks()
    assert sorted(ranks) == [0, 1, 2, 3]
    os.kill(ranks[3], signal.SIGKILL)
    assert cluster.wait(job, 60) != 0, cluster.text()
    cluster.wait_for(lambda: not cluster.ranks(), "all ranks have ended")


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_whose_own_name_is_a_loopback_address_is_told_so(cluster, node, tmp_path):
    """As in /etc/hosts of Debian and Ubuntu."""
    machine = cluster.machines[node]
    hosts = Path("/etc/netns", machine.namespace, "hosts")
    hosts.write_text(hosts.read_text().replace(f"{machine.address} ", "127.0.1.1 "))
    job = cluster.submit(arguments(tmp_path, STEPS))
    assert cluster.wait(job, 120) != 0, cluster.text()
    # Of the node itself, or of the other one if it was the first to end.
    sentence = "error: (HOST_IP|MASTER) is 127.0.1.1, "
    assert re.search(sentence, cluster.output.read_text()), cluster.text()
