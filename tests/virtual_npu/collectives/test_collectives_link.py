"""The emulated links: transfers take time, but no CPU time, so that computation overlaps."""

from pathlib import Path

import pytest
import ranks
from collectives.timing import IN_FLIGHT, SIZE

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "collectives" / "timing.py"
GBPS, MICROSECONDS = 0.02, 20000
SECONDS = SIZE / (GBPS * 1e9) + MICROSECONDS / 1e6


def limited(link: str) -> dict[str, str]:
    """The settings of a slow link: LINK inside a machine, RDMA between machines."""
    return {f"VIRTUAL_NPU_{link}_GBPS": str(GBPS), f"VIRTUAL_NPU_{link}_US": str(MICROSECONDS)}


def on_machines(*ranks_of_each: int) -> dict[str, str]:
    """The endpoints of ranks on several machines: Paddle only names them, and meets at PADDLE_MASTER."""
    endpoints = [f"10.0.0.{m}:{rank}" for m, count in enumerate(ranks_of_each) for rank in range(count)]
    return {"PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints)}


@pytest.fixture(scope="module", params=["LINK", "RDMA"])
def reports(request, tmp_path_factory):
    machines = on_machines(2) if request.param == "LINK" else on_machines(1, 1)
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("link"), **limited(request.param), **machines)


def test_ranks_of_one_machine_do_not_use_the_network(tmp_path):
    for report in ranks.run(PROGRAM, 2, tmp_path, **limited("RDMA"), **on_machines(2)):
        assert min(call["seconds"] for times in report["times"].values() for call in times) < SECONDS / 4


def test_a_group_on_two_machines_uses_both_links(tmp_path):
    """Each of two ranks carries half of what is reduced through its network port."""
    links = limited("LINK") | limited("RDMA")
    least = (SIZE + SIZE / 2) / (GBPS * 1e9) + 2 * MICROSECONDS / 1e6
    for report in ranks.run(PROGRAM, 4, tmp_path, "all_reduce", **links, **on_machines(2, 2)):
        seconds = [call["seconds"] for call in report["times"]["all_reduce"]]
        assert least <= min(seconds) < 1.3 * least


@pytest.mark.parametrize(
    "name",
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send", "exchange"],
)
def test_a_transfer_takes_latency_and_bytes_over_bandwidth(reports, name):
    for report in reports:
        times = report["times"][name]
        assert min(call["seconds"] for call in times) >= SECONDS
        # An exchange that shared one direction would take twice as long.
        assert min(call["seconds"] for call in times) < 1.7 * SECONDS
        assert min(call["computed"] for call in times) < 0.5 * SECONDS


def test_computation_goes_on_while_data_travel(reports):
    first, second = (report["overlapped"] for report in reports)
    assert first["product"] == 64.0**3
    assert first["done before rank 1 came"] is False
    assert second["sum"] == first["sum"] == 2.0 * SIZE / 4


def test_the_link_waits_for_the_last_rank(reports):
    assert reports[1]["overlapped"]["seconds"] >= SECONDS


def test_calls_in_flight_follow_each_other_on_the_link(reports):
    for report in reports:
        least = SECONDS + (IN_FLIGHT - 1) * MICROSECONDS / 1e6
        assert min(call["seconds"] for call in report["in flight"]) >= least
        assert min(call["seconds"] for call in report["in flight"]) < 1.3 * least


def test_waiting_costs_nothing(reports):
    waiting = reports[0]["waiting"]
    assert waiting["seconds"] >= 1
    assert waiting["computed"] < 0.2 * waiting["seconds"]
