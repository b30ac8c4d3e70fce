"""The machines that the tests of this folder run on: apart in the network, one in memory and files."""

import signal
import sys
import time

import pytest
import virtual_machines

PROGRAM = """
import socket, sys
print(socket.gethostname(), socket.gethostbyname(socket.gethostname()), flush=True)
if sys.argv[1] == "listen":
    with socket.create_server(("", 9000)) as server:
        print(server.accept()[1][0], flush=True)
else:
    while True:
        try:
            socket.create_connection((sys.argv[2], 9000), timeout=5).close()
            break
        except ConnectionRefusedError:
            pass
"""


def test_two_machines_reach_each_other_by_their_own_names(two_machines, tmp_path):
    first, second = two_machines
    if first.namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    command = [sys.executable, "-c", PROGRAM]
    server = first.start([*command, "listen"], tmp_path / "first", tmp_path)
    client = second.start([*command, "connect", first.name], tmp_path / "second", tmp_path)
    assert (client.wait(30), server.wait(30)) == (0, 0), (tmp_path / "second").read_text()
    assert (tmp_path / "first").read_text().split() == ["machine0", "10.77.0.1", "10.77.0.2"]
    assert (tmp_path / "second").read_text().split() == ["machine1", "10.77.0.2"]


@pytest.mark.parametrize("loopback", [False, True])
def test_all_processes_of_one_machine_are_killed(loopback, tmp_path):
    with virtual_machines.machines(2, loopback=loopback) as (first, second):
        sleep = ["sh", "-c", "sleep 1000 & wait"]
        killed, left = (machine.start(sleep, tmp_path / "log", tmp_path) for machine in (first, second))
        while len(first.processes()) < 2:
            assert killed.poll() is None
        first.signal_all(signal.SIGKILL)
        assert killed.wait(10) == -signal.SIGKILL
        end = time.monotonic() + 10  # the kernel may still be at the second process
        while first.processes():
            assert time.monotonic() < end
        assert left.poll() is None
    assert left.returncode == -signal.SIGKILL
