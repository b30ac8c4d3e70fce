"""examples/cluster/launch.sh on two machines, by the commands of its own first lines."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import run_inputs
import virtual_machines

from llm_npu.training import metrics

SCRIPT = virtual_machines.ROOT / "examples/cluster/launch.sh"
SECRET = "c2VjcmV0"  # of an environment variable
IMPORT = 90  # seconds that a launcher needs at most until it waits, on a busy host
SHOWN = {"first": "10.0.0.1", "second": "10.0.0.2", "output": "/shared/out"}  # in its first lines


def typed():
    """What the first lines of the script show."""
    return re.findall(r"^#\s+(NNODES=.*)$", SCRIPT.read_text(), re.MULTILINE)


def start(command, machine, folder):
    """Types ``command`` on this machine, in the clone."""
    argv = ["bash", "-c", command]
    environment = {"PATH": virtual_machines.PATH, "NPROC_PER_NODE": "2", "LOG_DIR": str(folder / "log")}
    log = folder / f"terminal.{machine.address}"
    return machine.start(argv, log, virtual_machines.ROOT, **environment), log


def commands(machines, output):
    """One for each machine, with these addresses and this folder."""
    shown = typed()
    first, second = (machine.address for machine in machines)
    replaced = {SHOWN["first"]: first, SHOWN["second"]: second, SHOWN["output"]: str(output)}
    for word, by in replaced.items():
        shown = [command.replace(word, by) for command in shown]
    return shown


def test_the_page_shows_the_same_commands():
    page = (virtual_machines.ROOT / "docs/several_machines.md").read_text()
    assert typed() == re.findall(r"^NNODES=.*$", page, re.MULTILINE) != []


@pytest.mark.slow
def test_two_machines_train_together(two_machines, tmp_path):
    inputs = run_inputs.short_run(tmp_path, per_device_train_batch_size=1, max_steps=3)
    shown = commands(two_machines, tmp_path / "out")
    assert len(shown) == 2
    more = " ".join(run_inputs.words(inputs))
    # What the environment may hold: a secret, a proxy that answers nobody, and another run's master.
    held = f"LLM_NPU_RUN_SECRET={SECRET * 2} MADE_UP_TOKEN={SECRET} HTTP_PROXY=http://127.0.0.1:9 "
    held += "PADDLE_MASTER=127.0.0.1:9 POD_IP=127.0.0.1"
    started = [
        start(f"{held} {command} {more}", machine, tmp_path)
        for command, machine in zip(shown, two_machines, strict=True)
    ]
    for process, log in started:
        assert process.wait(240) == 0, log.read_text()
    records = metrics.read(tmp_path / "out" / metrics.FILE)
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3]
    assert "ranks    4 processes: " in (tmp_path / "log/0/workerlog.0").read_text()
    assert all((tmp_path / f"log/{node}/workerlog.{rank}").exists() for node in (0, 1) for rank in (0, 1))
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file for file in written if SECRET.encode() in file.read_bytes()] == []


PLACES = {
    "a variable is missing": ({"HOST_IP": None}, "HOST_IP is not set; "),
    "no number of machines": ({"NNODES": "two"}, "NNODES is 'two'; "),
    "a rank outside": ({"NODE_RANK": "2"}, "NODE_RANK is '2'; "),
    "no port": (
        {"MASTER": "127.0.0.1"},
        "MASTER is '127.0.0.1'; accepted: the first machine's ADDRESS:PORT",
    ),
    "a port outside": ({"MASTER": "127.0.0.1:0"}, "the port of MASTER is '0'; "),
    "no seconds": ({"RDZV_TIMEOUT": "soon"}, "RDZV_TIMEOUT is 'soon'; "),
    "another machine's address": ({"HOST_IP": "198.51.100.1"}, "HOST_IP is 198.51.100.1, "),
    "a master that is not the first machine": (
        {"MASTER": "127.0.0.2:8090"},
        "MASTER is 127.0.0.2:8090, but HOST_IP of the first machine is 127.0.0.1",
    ),
    "an own name on the first machine": (
        {"MASTER": "127.0.1.1:8090", "HOST_IP": "127.0.1.1"},
        "HOST_IP is 127.0.1.1, ",
    ),
    "an own name on another machine": (
        {"MASTER": "203.0.113.1:8090", "NODE_RANK": "1"},
        "HOST_IP is 127.0.0.1, ",
    ),
    "an own name for a master": ({"MASTER": "127.0.1.1:8090", "NODE_RANK": "1"}, "MASTER is 127.0.1.1, "),
    "its own master": (
        {"NODE_RANK": "1"},
        "MASTER is 127.0.0.1:{port}, this machine's own address, but its NODE_RANK is 1",
    ),
    "a port that is taken": ({}, "port {port} of 127.0.0.1 (MASTER) cannot be used"),
}


def waiting(machine, folder, *arguments, within=(), **variables):
    """The script with these arguments and variables on this machine, by ``within``, and its output."""
    log = folder / f"terminal.{machine.address}"
    more = {"PATH": virtual_machines.PATH, "LOG_DIR": str(folder / "log")}
    return machine.start([*within, SCRIPT, *arguments], log, virtual_machines.ROOT, **more, **variables), log


@pytest.mark.parametrize("name", PLACES)
def test_what_would_wait_for_ever_is_refused(name, tmp_path):
    changes, message = PLACES[name]
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        virtual_machines.machines(1, loopback=True) as (machine,),
    ):
        port = taken.getsockname()[1]
        variables = {"NNODES": "2", "NODE_RANK": "0", "MASTER": f"127.0.0.1:{port}", "HOST_IP": "127.0.0.1"}
        process, log = waiting(machine, tmp_path, **{**variables, **changes})
        assert process.wait(30) == 2
    assert log.read_text().startswith(f"error: {message.format(port=port)}"), log.read_text()
    assert log.read_text().count("\n") == 1


def started(machines, folder, numbers, **variables):
    """The script on these machines, with these numbers of three."""
    return [
        waiting(
            machine,
            folder,
            **{"NNODES": "3", "NODE_RANK": str(number), "HOST_IP": machine.address, **variables},
        )
        for machine, number in zip(machines, numbers, strict=True)
    ]


def ends(machines, processes, limit):
    """The last lines of all, which have ended with exit code 2, and have left nothing behind."""
    for process, log in processes:
        assert process.wait(limit + IMPORT) == 2, log.read_text()
    assert not any(machine.processes() for machine in machines)
    return [log.read_text().splitlines()[-1] for _, log in processes]


GONE = "the launcher at MASTER 10.77.0.1:8090 exited"


@pytest.mark.slow
def test_a_machine_that_does_not_come(three_apart, tmp_path):
    limit = 20  # seconds: on a busy host the launchers do not begin to wait at one moment
    two = three_apart[:2]
    first, second = ends(
        two, started(two, tmp_path, [0, 1], MASTER="10.77.0.1:8090", RDZV_TIMEOUT=str(limit)), limit
    )
    late = f"error: 2 of 3 machines connected to 10.77.0.1:8090 within {limit} seconds (RDZV_TIMEOUT); "
    assert first.startswith(late) and "NODE_RANK 2" in first, first
    assert second == first or GONE in second, second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secret", "difference"),
    [("fedcba9876543210", "differs from this machine"), ("", "is not set on this machine")],
)
def test_a_machine_with_another_secret(three_apart, tmp_path, secret, difference):
    """It ends at once; the first one goes on waiting."""
    place = {"NNODES": "2", "MASTER": "10.77.0.1:8090"}
    secrets = "0123456789abcdef", secret
    first, (second, log) = (
        waiting(
            machine, tmp_path, NODE_RANK=str(rank), HOST_IP=machine.address, LLM_NPU_RUN_SECRET=own, **place
        )
        for rank, (machine, own) in enumerate(zip(three_apart[:2], secrets, strict=True))
    )
    assert second.wait(2 * IMPORT) == 2, log.read_text()
    sentence = f"error: LLM_NPU_RUN_SECRET of the launcher at MASTER 10.77.0.1:8090 {difference}"
    assert log.read_text().splitlines()[-1].startswith(sentence)
    assert first[0].poll() is None


@pytest.mark.slow
def test_two_machines_with_one_number(three_apart, tmp_path):
    outputs = ends(three_apart, started(three_apart, tmp_path, [0, 1, 1], MASTER="10.77.0.1:8090"), 30)
    assert outputs[0].startswith(
        "error: the machines connected to 10.77.0.1:8090 have the NODE_RANKs 0, 1, 1;"
    )
    assert all(output == outputs[0] or GONE in output for output in outputs), outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "why"),
    [
        ("10.77.0.9:8090", "No route to host"),
        ("10.77.0.1:8091", "Connection refused"),
        ("10.77.0.1:8092", "not Paddle's launcher"),
    ],
)
def test_a_wrong_master(three_apart, master, why, tmp_path):
    program = "import socket, time; open_port = socket.create_server(('', 8092)); time.sleep(600)"
    three_apart[0].start([sys.executable, "-c", program], tmp_path / "other", tmp_path)
    alone = three_apart[1:2]
    (output,) = ends(alone, started(alone, tmp_path, [1], MASTER=master, RDZV_TIMEOUT="4"), 4)
    assert output.startswith(f"error: no launcher answered at MASTER {master} ")
    assert why in output


def listening(machine):
    """The addresses and ports on which programs of this machine listen."""
    command = ["ip", "netns", "exec", machine.namespace, "ss", "-Htln"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line.split()[3] for line in done.stdout.splitlines()]


FIRST_PROCESS = [
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
]  # of a container: signals do nothing by default


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "within"), [(signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGTERM, FIRST_PROCESS)]
)
def test_a_signal_ends_the_wait(three_apart, number, within, tmp_path):
    alone = three_apart[:1]
    ((process, log),) = started(alone, tmp_path, [0], within=within, MASTER="10.77.0.1:8090")
    end = time.monotonic() + IMPORT
    while "Waiting peer start" not in log.read_text():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    while not (addresses := listening(alone[0])):  # the master waits up to 2 seconds before it listens
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    assert addresses == ["10.77.0.1:8090"]
    os.kill(virtual_machines.tree(process.pid)[-1], number)
    assert process.wait(5) == 128 + number, log.read_text()
    assert not alone[0].processes()


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_ranks(tmp_path):
    with virtual_machines.machines(1, loopback=True) as (machine,):
        variables = {"NNODES": "1", "NODE_RANK": "0", "MASTER": "127.0.0.1:8090", "HOST_IP": "127.0.0.1"}
        process, log = waiting(machine, tmp_path, "--no_such_flag", NPROC_PER_NODE="1", **variables)
        assert process.wait(IMPORT) == 2, log.read_text()
    assert "no_such_flag" in (tmp_path / "log/0/workerlog.0").read_text()
