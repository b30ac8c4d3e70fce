"""``llm-npu doctor --cluster``: the machines are compared without a run."""

import socket
import sys
from pathlib import Path

import pytest

from llm_npu.cluster.without_run import PORT
from llm_npu.commands.doctor import main
from llm_npu.core import program
from llm_npu.doctor import rank_table


def compared(machines, folder, *environments, options=(), folders=None):
    """The exit codes and what the machines say; as many of them are started as there are environments.

    ``folders``: each machine's working folder; ``folder`` for all if it is None.
    """
    hosts = folder / "hosts"
    hosts.write_text("# all\n" + "".join(f"{machine.address}  # {machine.name}\n" for machine in machines))
    argv = [sys.executable, "-m", "llm_npu", "doctor", "--cluster", hosts, *options]
    logs = [folder / f"log{number}" for number in range(len(machines))]
    processes = [
        machine.start(argv, log, own, **environment)
        for machine, log, own, environment in zip(
            machines, logs, folders or [folder] * len(machines), environments, strict=False
        )
    ]
    codes = [process.wait(180) for process in processes]
    parts_of_logs = [log.read_text().partition("\n") for log in logs[: len(processes)]]
    assert all(first.startswith("waiting  up to ") for first, *_ in parts_of_logs), parts_of_logs
    return codes, [rest for *_, rest in parts_of_logs]


@pytest.fixture
def apart(two_machines):
    if two_machines[0].namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    return two_machines


@pytest.mark.slow
def test_equal_machines(apart, tmp_path):
    codes, outputs = compared(apart, tmp_path, {}, {})
    assert codes == [0, 0], outputs
    assert all("2 machines with equal " in output for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("complete", [True, False])
def test_a_rank_table_of_the_machines(apart, tmp_path, complete):
    folders = [tmp_path / machine.name for machine in apart]
    for number, folder in enumerate(folders):
        file = folder / "root/etc/hccn.conf"
        file.parent.mkdir(parents=True)
        count = 2 if complete else 2 - number
        file.write_text("".join(f"address_{card}=192.168.{number}.1{card}\n" for card in range(count)))
    options = ["--root", "root", "--rank_table", "table.json"]  # each machine's own
    own = {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    codes, outputs = compared(apart, tmp_path, own, own, options=options, folders=folders)
    if complete:
        assert codes == [0, 0], outputs
        assert all("4 ranks on 2 servers" in output for output in outputs), outputs
        tables = [rank_table.problems(folder / "table.json") for folder in folders]
        assert tables == [[], []]
        first, second = ((folder / "table.json").read_text() for folder in folders)
        assert first == second and '"device_ip": "192.168.1.11"' in first
    else:
        assert codes == [2, 2], outputs
        sentence = "since device 1 of server '10.77.0.2' has no device_ip"
        assert all(sentence in output for output in outputs), outputs
        assert not any((folder / "table.json").exists() for folder in folders)


@pytest.mark.slow
def test_another_cann_is_named(apart, tmp_path):
    codes, outputs = compared(apart, tmp_path, {}, {"VIRTUAL_NPU_CANN": "8.1.RC1"})
    assert codes == [2, 2], outputs
    rows = [line.split(maxsplit=2) for line in outputs[0].splitlines()]
    assert rows[-2] == ["CANN", "8.0.0", "machine0 10.77.0.1 (rank 0)"], outputs
    assert " ".join(rows[-1]) == "8.1.RC1 machine1 10.77.0.2 (rank 1)" and len(rows) == 4, outputs
    assert "10.77.0.1" in outputs[1]


@pytest.mark.slow
def test_a_machine_that_does_not_come(apart, tmp_path):
    codes, outputs = compared(apart, tmp_path, {}, options=["--timeout", "4"])
    assert codes == [2], outputs
    assert outputs[0].startswith("error: ") and outputs[0].count("\n") == 1, outputs
    for part in ("1 of 2 machines", f"10.77.0.1:{PORT}", "4 seconds", "--timeout", "NODE_RANK 1"):
        assert part in outputs[0], outputs
    assert not apart[0].processes()


@pytest.mark.slow
def test_an_own_name_that_is_a_loopback_address(apart, tmp_path):
    """As in /etc/hosts of Debian and Ubuntu; by addresses these machines find each other."""
    names = tmp_path / "names"
    names.write_text("".join(f"{machine.name}\n" for machine in apart))
    for number, machine in enumerate(apart):
        file = Path("/etc/netns", machine.namespace, "hosts")
        file.write_text(file.read_text().replace(f"{machine.address} ", "127.0.1.1 "))
        log = tmp_path / f"names{number}"
        argv = [sys.executable, "-m", "llm_npu", "doctor", "--cluster", names]
        assert machine.start(argv, log, tmp_path).wait(60) == 2
        assert log.read_text().startswith(f"error: {names} names machine{number}, which is 127.0.1.1 here, ")
    codes, outputs = compared(apart, tmp_path, {}, {})
    assert codes == [0, 0], outputs


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file or directory"),
        ("127.0.0.1\n", "names 1 host(s)"),
        ("127.0.0.1 slots=x\n203.0.113.1\n", "has the line '127.0.0.1 slots=x'"),
        ("127.0.0.1\n127.0.0.2 slots=8\n", "2 of the addresses"),
        ("198.51.100.1\n203.0.113.1\n", "an address of this machine"),
        ("203.0.113.1\nlocalhost\n", "names localhost, which is 127.0.0.1 here"),
        ("127.0.0.1\nno-such-host.invalid\n", "names no-such-host.invalid, which has no IPv4 address here"),
        (f"127.0.0.1\n{'x' * 70}\n", "which has no IPv4 address here"),  # longer than a part of a name
        ("127.0.0.1\na..b\n", "names a..b, which has no IPv4 address here"),
        (b"\x7fELF\x02\x01\x01\xff\xfe", "invalid UTF-8 at byte 7"),
        ("\ufeffhost\n".encode("utf-16-le"), "invalid UTF-8 at byte 0"),
        (b"\x7fELF\0\0\n", r"has the line '\x7fELF\x00\x00'"),
        (b"\x1b[31mred\n", r"has the line '\x1b[31mred'; accepted: HOST"),
        ("x" * (2 << 20), "is larger than 1 MiB"),
        ("\ufeff203.0.113.1\r\n203.0.113.2\r\n", "203.0.113.1, 203.0.113.2, "),
    ],
)
def test_bad_hostfiles(tmp_path, capsys, content, sentence):
    hosts = tmp_path / "hosts"
    if content is not None:
        hosts.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert program.run(main, ["--cluster", str(hosts)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_port_that_another_program_has(tmp_path, capsys):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1\n203.0.113.1\n")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", PORT))
        other.listen()
        assert program.run(main, ["--cluster", str(hosts)]) == 2
    assert f"port {PORT} of 127.0.0.1" in capsys.readouterr().err
