"""HCCL's variables are checked in a run before Paddle is imported, and the machine is named."""

import socket
import sys

import pytest
import run_inputs
import virtual_machines


@pytest.mark.slow
def test_one_machine_with_a_wrong_interface(tmp_path):
    argv = [sys.executable, virtual_machines.SCRIPT, "--max_steps", 1]
    variables = {"HCCL_SOCKET_IFNAME": "=missing0", "VIRTUAL_NPU_QUIET": "1"}
    with virtual_machines.machines(1, loopback=True) as (machine,):
        process = machine.start(argv, tmp_path / "log", tmp_path, **variables)
        assert process.wait(60) == 2, (tmp_path / "log").read_text()
    (sentence,) = (tmp_path / "log").read_text().splitlines()
    assert sentence.startswith("error: HCCL_SOCKET_IFNAME is '=missing0'")
    assert f"(on {socket.gethostname()})" in sentence
    assert sentence.endswith("`unset HCCL_SOCKET_IFNAME`.")


@pytest.mark.slow
def test_the_machine_with_a_wrong_interface_is_named(two_machines, tmp_path):
    if two_machines[0].namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    words = run_inputs.words({"max_steps": 1, "output_dir": "out"})
    environments = [{"HCCL_SOCKET_IFNAME": "eth0"}, {"HCCL_SOCKET_IFNAME": "=eth1"}]
    job = virtual_machines.launch(two_machines, words, tmp_path, environments=environments)
    codes = job.wait(120)
    own = (job.logs / "1" / "workerlog.0").read_text()
    assert codes[1] == 2 and "matches none of this host's lo, eth0 (on machine1)" in own, job.text()
    # The others are ended by its end, before they have trained anything.
    first = (job.logs / "0" / "workerlog.0").read_text()
    assert codes[0] != 0 and "machine machine1 (10.77.0.2, ranks 2 to 3)" in first, job.text()
    assert "step 1" not in first
