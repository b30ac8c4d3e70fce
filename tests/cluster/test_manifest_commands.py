"""The commands of the Kubernetes manifests on virtual machines, with what their controllers set."""

import pytest
import run_inputs
import virtual_machines
import yaml

from llm_npu.training import metrics

EXAMPLES = virtual_machines.ROOT / "examples/cluster"
RANKS, STEPS = 2, 3


def paddlejob(machines, number):
    """The command of a pod, and what paddle-operator sets in it."""
    manifest = yaml.safe_load((EXAMPLES / "paddlejob.yaml").read_text())
    (container,) = manifest["spec"]["worker"]["template"]["spec"]["containers"]
    addresses = [machine.address for machine in machines]
    return container["command"], {
        "PADDLE_TRAINERS": ",".join(addresses),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(f"{address}:40000" for address in addresses),
        "PADDLE_TRAINERS_NUM": str(len(addresses)),
        "PADDLE_PORT": "40000",
        "TRAINER_PORTS_NUM": "20",
        "POD_IP": addresses[number],
        "PADDLE_TRAINER_ID": str(number),
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_TRAINING_ROLE": "TRAINER",
    }


def volcano(machines, number):
    """The command of a pod, and what Volcano's plugins env and svc set in it."""
    manifest = yaml.safe_load((EXAMPLES / "volcano.yaml").read_text())
    (task,) = manifest["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    hosts = [machine.name if machine.namespace else machine.address for machine in machines]
    return container["command"], {
        f"VC_{task['name'].upper()}_HOSTS": ",".join(hosts),
        f"VC_{task['name'].upper()}_NUM": str(len(hosts)),
        "VC_TASK_INDEX": str(number),
        "HOST_IP": machines[number].address,
    }


@pytest.mark.slow
@pytest.mark.parametrize("example", [paddlejob, volcano])
def test_two_machines_train(two_machines, example, tmp_path):
    fields = {"per_device_train_batch_size": 1, "max_steps": STEPS, "output_dir": tmp_path / "out"}
    words = run_inputs.words(run_inputs.short_run(tmp_path, **fields))
    processes = []
    for number, machine in enumerate(two_machines):
        command, variables = example(two_machines, number)
        variables |= {
            "PATH": virtual_machines.PATH,
            "NPROC_PER_NODE": str(RANKS),
            "LOG_DIR": str(tmp_path / "logs"),
        }
        argv = [*command, *words]
        log = tmp_path / "logs" / f"launcher.{number}"
        log.parent.mkdir(exist_ok=True)
        processes.append(machine.start(argv, log, virtual_machines.ROOT, **variables))
    job = virtual_machines.Job(two_machines, processes, tmp_path / "logs")
    assert job.wait(240) == [0, 0], job.text()
    records = metrics.read(tmp_path / "out" / metrics.FILE)
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3]
    assert "ranks    4 processes: " in (tmp_path / "logs/0/workerlog.0").read_text(), job.text()
    for number in range(2):
        logs = sorted((tmp_path / "logs" / str(number)).glob("workerlog.*"))
        assert [log.name for log in logs] == ["workerlog.0", "workerlog.1"]
        assert all(f"step {STEPS}/{STEPS}" in log.read_text() for log in logs), job.text()
