"""A machine of a training is lost at any moment, and the run goes on afterwards as if nothing had been.

pytest -m slow tests/cluster/test_lost_machines.py --faults 30
"""

import os
import random
import re
import signal
import subprocess
import time

import pytest
import run_inputs
import virtual_machines
from run_inputs import losses

from llm_npu.training import checkpoint

pytestmark = pytest.mark.slow
# The virtual NPU's ranks share memory, and train on until the cut of the network is noticed: the steps after
# the loss take longer than that.
STEPS, SAVED, LAST_LOSS = 400, 5, 30
LIMIT = 10.0  # seconds from the loss to the end of the launchers of the machines that are left
STARTING = 8.0  # seconds between the first heartbeat and the first step, on an idle host
# Of a launcher whose rank was killed: Python's interpreter cannot end it while Paddle's store holds the
# interpreter's lock, waiting for all ranks to start.
KILLED = -signal.SIGKILL & 0xFF
START = 240.0  # seconds that the machines need at most until they train, on a busy host
FAULTS = {
    "killed": lambda machine: machine.signal_all(signal.SIGKILL),
    "stopped": lambda machine: machine.signal_all(signal.SIGSTOP),
    "interface down": lambda machine: machine.take_interface_down(),
    "interface deleted": lambda machine: machine.lose_network(),
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    fields = {
        "do_eval": "false",
        "evaluation_strategy": "no",
        "disable_tqdm": "true",
        "max_steps": STEPS,
        "save_steps": SAVED,
        "resume_from_checkpoint": "auto",
    }
    arguments = run_inputs.short_run(tmp_path_factory.mktemp("inputs"), **fields)
    return [*run_inputs.words(arguments), "--async_save"]


def launched(machines, arguments, folder):
    """One rank on each machine; all write to the same output folder."""
    return virtual_machines.launch(machines, [*arguments, "--output_dir", folder / "out"], folder, ranks=1)


@pytest.fixture(scope="module")
def undisturbed(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with virtual_machines.machines(2) as machines:
        job = launched(machines, arguments, folder)
        assert job.wait(START) == [0, 0], job.text()
    return losses(folder / "out")


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(metafunc.config.getoption("faults")))


def moment(folder, random):
    """A condition for the loss: a step has been made, or a checkpoint is being written."""
    if random.random() < 0.5:
        return lambda: any((folder / "out").glob(".checkpoint-*"))
    step = random.randrange(1, LAST_LOSS)
    log = folder / "logs/0/workerlog.0"
    return lambda: log.exists() and f"\nstep {step}/" in log.read_text()


def registered(machines, folder):
    """Whether the heartbeat processes of both ranks have reached the endpoint of rank 0."""
    environment = folder / "logs/0/envlog.0"  # the launcher's, of rank 0
    text = environment.read_text() if environment.exists() else ""
    endpoint = re.search(r"^PADDLE_TRAINER_ENDPOINTS=[\d.]+:(\d+),", text, re.MULTILINE)
    if endpoint is None:
        return False
    command = ["ip", "netns", "exec", machines[0].namespace, "ss", "-Htn", "state", "established"]
    command += ["sport", "=", f":{endpoint[1]}"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return len(listed.splitlines()) == 2


def lose(machines, lost, fault, job, folder, codes=(os.EX_TEMPFAIL,)):
    """The fault on the machine ``lost``: both end in time, with its name and one of ``codes``."""
    machine, left = machines[lost], machines[1 - lost]
    begun = time.monotonic()
    FAULTS[fault](machine)
    code = job.processes[1 - lost].wait(LIMIT)
    while left.processes():
        assert time.monotonic() - begun < LIMIT, job.text()
    assert code in codes, job.text()
    sentence = f"error: machine {machine.name} ({machine.address}, rank {lost}) is lost"
    for log in (f"{1 - lost}/workerlog.0", f"launcher.{1 - lost}"):
        assert sentence in (folder / "logs" / log).read_text(), job.text()
    machine.signal_all(signal.SIGCONT)
    assert job.processes[lost].wait(LIMIT) in (*codes, -signal.SIGKILL), job.text()


@pytest.fixture
def apart():
    if not virtual_machines.namespaces_are_allowed():
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_machine_lost_during_the_start(arguments, apart, tmp_path, fault, request):
    """Paddle is imported, the ranks connect to each other, the model is built."""
    draw = random.Random(f"{request.config.getoption('seed')} {fault}")
    with virtual_machines.machines(2) as machines:
        job = launched(machines, arguments, tmp_path)
        job.wait_for(lambda: registered(machines, tmp_path), START)
        time.sleep(draw.random() * STARTING)  # the moment itself
        lose(machines, draw.randrange(2), fault, job, tmp_path, (os.EX_TEMPFAIL, KILLED))


def test_of_the_halves_of_a_cut_network_one_goes_on(arguments, apart, tmp_path):
    with virtual_machines.machines(2) as machines:
        job = launched(machines, arguments, tmp_path)
        job.wait_for(lambda: checkpoint.complete(tmp_path / "out"), START)
        machines[1].take_interface_down()
        assert job.wait(LIMIT) == [os.EX_TEMPFAIL] * 2, job.text()
        # Each half starts the run again, by itself; the disk is still there for both.
        whole_step = [*arguments, "--gradient_accumulation_steps", "2", "--output_dir", tmp_path / "out"]
        halves = [
            virtual_machines.launch([machine], whole_step, tmp_path / machine.name, ranks=1)
            for machine in machines
        ]
        codes = [code for half in halves for code in half.wait(2 * START)]
        texts = [half.text() for half in halves]
    assert sorted(codes) == [0, 2], texts
    owner, refused = (codes.index(code) for code in (0, 2))
    sentence = rf"error: \S*/out is in use by another run \(process \d+ on {machines[owner].name}, "
    assert re.search(sentence, texts[refused]), texts[refused]
    assert sorted(losses(tmp_path / "out")[0]) == list(range(1, STEPS + 1))


def test_a_run_that_lost_a_machine(arguments, undisturbed, apart, tmp_path, number, request):
    draw = random.Random(f"{request.config.getoption('seed')} {number}")
    fault, lost = list(FAULTS)[number % len(FAULTS)], draw.randrange(2)
    print(f"{fault}: machine{lost}")
    with virtual_machines.machines(2) as machines:
        job = launched(machines, arguments, tmp_path)
        job.wait_for(moment(tmp_path, draw), START)
        time.sleep(draw.random() * 0.2)  # the moment itself
        lose(machines, lost, fault, job, tmp_path)
    for folder in checkpoint.complete(tmp_path / "out"):
        checkpoint.verify(folder)
    with virtual_machines.machines(2) as machines:
        resumed = launched(machines, arguments, tmp_path)
        assert resumed.wait(START) == [0, 0], resumed.text()
    assert losses(tmp_path / "out") == undisturbed
    assert not list((tmp_path / "out").glob(".checkpoint-*"))
