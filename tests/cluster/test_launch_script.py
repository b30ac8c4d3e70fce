"""examples/cluster/launch.sh on two machines, by the commands of its own first lines."""

import re

import pytest
import run_inputs
import virtual_machines

from llm_npu.training import metrics

SCRIPT = virtual_machines.ROOT / "examples/cluster/launch.sh"
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
    given = run_inputs.short_run(tmp_path, per_device_train_batch_size=1, max_steps=3)
    shown = commands(two_machines, tmp_path / "out")
    assert len(shown) == 2
    more = " ".join(run_inputs.words(given))
    started = [
        start(f"{command} {more}", machine, tmp_path)
        for command, machine in zip(shown, two_machines, strict=True)
    ]
    for process, log in started:
        assert process.wait(240) == 0, log.read_text()
    records = metrics.read(tmp_path / "out" / metrics.FILE)
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3]
    assert "ranks    4 processes: " in (tmp_path / "log/0/workerlog.0").read_text()
    assert all((tmp_path / f"log/{node}/workerlog.{rank}").exists() for node in (0, 1) for rank in (0, 1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:8090", "error: HOST_IP is not set; each machine needs"),
        (
            "NNODES=2 NODE_RANK=0 MASTER=node1:8090 HOST_IP=10.0.0.1",
            "error: MASTER is node1:8090, but HOST_IP of the first machine is 10.0.0.1; give "
            "MASTER=10.0.0.1:PORT to all.",
        ),
    ],
)
def test_what_would_wait_for_ever_is_refused(words, said, tmp_path):
    with virtual_machines.machines(1, loopback=True) as (machine,):
        process, log = start(f"{words} examples/cluster/launch.sh", machine, tmp_path)
        assert process.wait(30) == 2
    assert log.read_text().startswith(said) and log.read_text().count("\n") == 1
