"""Heartbeats between machines, without a training: which machine is lost, how soon, and how it is named."""

import os
import signal
import socket
import subprocess
import time

import pytest
import virtual_machines
from watched_ranks import LIMIT, Ranks

from llm_npu.launch import heartbeat

TIMEOUT = heartbeat.TIMEOUT * heartbeat.INTERVAL
MACHINE = ["machine machine0 (10.77.0.1, ranks 0 to 1)", "machine machine1 (10.77.0.2, rank 2)"]


@pytest.fixture
def running(two_machines, tmp_path):
    if two_machines[0].namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    ranks = Ranks(two_machines, tmp_path)
    ranks.wait_until_watched()
    return ranks


FAULTS = {
    "killed": lambda machine: machine.signal_all(signal.SIGKILL),
    "stopped": lambda machine: machine.signal_all(signal.SIGSTOP),
    "interface down": lambda machine: machine.take_interface_down(),
    "interface deleted": lambda machine: machine.lose_network(),
}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 0])
@pytest.mark.parametrize("fault", ["interface down", "killed", "stopped", "interface deleted"])
def test_a_lost_machine_is_named_by_all_others(running, fault, lost):
    begun = time.monotonic()
    FAULTS[fault](running.machines[lost])
    left, gone = running.of(1 - lost), running.of(lost)
    assert set(running.codes(left)) == {os.EX_TEMPFAIL}, running.text()
    assert time.monotonic() - begun < LIMIT
    for rank in left:
        lines = [line for line in running.logs[rank].read_text().splitlines() if line != "watched"]
        assert len(lines) == 1 and lines[0].startswith(f"error: {MACHINE[lost]} is lost"), lines
    if fault == "stopped":
        running.machines[lost].signal_all(signal.SIGCONT)
    own = running.codes(gone)
    if fault == "killed":
        assert set(own) == {-signal.SIGKILL}
    else:
        assert set(own) == {os.EX_TEMPFAIL}, running.text()
        assert all(MACHINE[lost] in running.logs[rank].read_text() for rank in gone), running.text()


@pytest.mark.slow
def test_a_first_machine_that_is_cut_off_says_so(three_apart, tmp_path):
    """Its own link stays up: it cannot know on which side the network is cut."""
    ranks = Ranks(three_apart, tmp_path)
    ranks.wait_until_watched()
    three_apart[0].leave_the_bridge()
    assert set(ranks.codes(range(4))) == {os.EX_TEMPFAIL}, ranks.text()
    own = f"error: no heartbeat from any other machine for {TIMEOUT:g} seconds: {MACHINE[0]} is cut off "
    for rank in (0, 1):
        first, error = ranks.logs[rank].read_text().splitlines()
        assert first == "watched" and error.startswith(own), ranks.text()
    for rank, name in ((2, "machine1"), (3, "machine2")):
        sentence = f"error: {MACHINE[0]} is lost, or the network between it and {name} "
        assert sentence in ranks.logs[rank].read_text(), ranks.text()


@pytest.mark.slow
def test_the_first_of_two_machines_cannot_know_which_is_cut_off(running):
    running.machines[0].leave_the_bridge()
    assert set(running.codes(range(3))) == {os.EX_TEMPFAIL}, running.text()
    sentence = f"error: {MACHINE[1]} is lost, or the network between it and machine0 "
    assert all(sentence in running.logs[rank].read_text() for rank in (0, 1)), running.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "sentence"),
    [
        ([2], "the machine 10.77.0.2 (rank 2) is lost: "),
        ([0, 1], "the machine 10.77.0.1 (ranks 0 to 1) is lost, "),
    ],
)
def test_a_machine_that_never_appears(two_machines, absent, sentence, tmp_path):
    if two_machines[0].namespace is None:
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    begun = time.monotonic()
    ranks = Ranks(two_machines, tmp_path, absent=absent)
    left = list(ranks.processes)
    assert set(ranks.codes(left, heartbeat.JOIN_TIMEOUT * heartbeat.INTERVAL + LIMIT)) == {os.EX_TEMPFAIL}
    assert time.monotonic() - begun > heartbeat.JOIN_TIMEOUT * heartbeat.INTERVAL, ranks.text()
    for rank in left:
        assert f"error: {sentence}" in ranks.logs[rank].read_text(), ranks.text()


@pytest.mark.slow
def test_a_run_that_pauses_as_a_whole_has_lost_no_machine(running):
    for machine in running.machines:
        machine.signal_all(signal.SIGSTOP)
    time.sleep(TIMEOUT + 2)  # the pause itself
    for machine in running.machines:
        machine.signal_all(signal.SIGCONT)
    time.sleep(TIMEOUT + 2)  # in which a loss would be noticed
    running.end.write_text("end")
    assert running.codes(range(3)) == [0, 0, 0], running.text()
    assert "error" not in running.text()


@pytest.mark.slow
def test_the_end_of_one_rank_ends_the_others_but_is_not_called_a_lost_machine(running):
    running.processes[1].kill()  # machine0 lives on, with rank 0
    assert running.codes([0, 2]) == [1, 1], running.text()
    sentence = "error: rank 1 on machine machine0 (10.77.0.1, ranks 0 to 1) exited "
    assert sentence in running.logs[2].read_text(), running.text()


@pytest.mark.slow
def test_ranks_that_are_done_leave_one_after_the_other(running):
    """As from containers, which end with their last rank and take all processes with them."""
    running.end_of(2).write_text("end")
    assert running.codes([2]) == [0]
    running.machines[1].signal_all(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):  # a loss would end it
        running.codes([1], TIMEOUT + 2)
    running.end.write_text("end")
    assert running.codes([0, 1]) == [0, 0]
    assert running.text().split() == ["watched"] * 3


def first_ranks_done(running):
    """The ranks of the first machine are done; the first of all stays, since the third still works."""
    for rank in (0, 1):
        running.end_of(rank).write_text("end")
    assert running.codes([1]) == [0]
    with pytest.raises(subprocess.TimeoutExpired):
        running.codes([0], TIMEOUT + 2)


@pytest.mark.slow
def test_the_first_rank_waits_for_those_that_still_work(running):
    first_ranks_done(running)
    running.end.write_text("end")
    assert running.codes([0]) == [0]
    running.machines[0].signal_all(signal.SIGKILL)
    assert running.codes([2]) == [0], running.text()
    assert running.text().split() == ["watched"] * 3


@pytest.mark.slow
def test_the_first_rank_does_not_wait_for_ever(running):
    first_ranks_done(running)
    assert running.codes([0], heartbeat.DRAIN * heartbeat.INTERVAL) == [0]
    running.machines[0].signal_all(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):  # nobody watches it any more
        running.codes([2], TIMEOUT + 2)
    running.end.write_text("end")
    assert running.codes([2]) == [0], running.text()
    assert running.text().split() == ["watched"] * 3


@pytest.mark.slow
def test_a_loss_after_the_first_rank_is_done(running):
    first_ranks_done(running)
    running.machines[1].signal_all(signal.SIGKILL)
    assert running.codes([0]) == [os.EX_TEMPFAIL]
    assert f"error: {MACHINE[1]} is lost" in running.logs[0].read_text(), running.text()


@pytest.mark.slow
def test_an_error_keeps_its_traceback_where_no_machine_is_lost(running):
    running.end.write_text("fail")
    assert running.codes(range(3)) == [1, 1, 1], running.text()
    assert all("KeyError: 'made up'" in log.read_text() for log in running.logs), running.text()
    assert "is lost" not in running.text()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_the_error_of_one_rank_stands_in_the_logs_of_the_others(running, rank):
    running.end_of(rank).write_text("fail")
    assert running.codes(range(3)) == [1, 1, 1], running.text()
    name = {
        0: "rank 0 on machine machine0 (10.77.0.1, ranks 0 to 1)",
        2: "rank 2 on machine machine1 (10.77.0.2, rank 2)",
    }[rank]
    sentence = f"error: {name} exited before the run was complete: KeyError: 'made up'"
    for other in {0, 1, 2} - {rank}:
        assert sentence in running.logs[other].read_text(), running.text()


@pytest.mark.slow
def test_the_coordinator_listens_on_its_own_address_only(running):
    sockets = [line.split() for line in running.listening().splitlines()]
    assert [words[3] for words in sockets if words[0] == "LISTEN"] == ["10.77.0.1:7000"]
    running.end.write_text("end")
    assert running.codes(range(3)) == [0, 0, 0]


def test_an_endpoint_that_is_taken_is_refused(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        virtual_machines.machines(2, loopback=True) as machines,
    ):
        port = taken.getsockname()[1]
        ranks = Ranks(machines, tmp_path, port)
        assert ranks.processes[0].wait(30) == 2, ranks.text()
    assert f"127.0.0.1:{port}" in ranks.logs[0].read_text()


def test_a_run_on_one_machine_starts_no_heartbeat(monkeypatch):
    from llm_npu.launch import watch_machines

    for endpoints in ("", "127.0.0.1:7000,127.0.0.1:7001"):
        monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", endpoints)
        with watch_machines():
            children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "heartbeat.process"])
            assert children.returncode == 1
