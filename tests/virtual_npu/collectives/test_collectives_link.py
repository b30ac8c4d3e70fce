"""The emulated link: transfers take time, but no CPU time, so that computation overlaps."""

from pathlib import Path

import pytest
import ranks
from collectives.timing import IN_FLIGHT, SIZE

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "collectives" / "timing.py"
GBPS, MICROSECONDS = 0.02, 20000
SECONDS = SIZE / (GBPS * 1e9) + MICROSECONDS / 1e6


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    link = {"VIRTUAL_NPU_LINK_GBPS": str(GBPS), "VIRTUAL_NPU_LINK_US": str(MICROSECONDS)}
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("link"), **link)


@pytest.mark.parametrize(
    "name",
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send", "exchange"],
)
def test_a_transfer_takes_latency_and_bytes_over_bandwidth(found, name):
    for report in found:
        times = report["times"][name]
        assert min(one["seconds"] for one in times) >= SECONDS
        # An exchange that shared one direction would take twice as long.
        assert min(one["seconds"] for one in times) < 1.7 * SECONDS
        assert min(one["computed"] for one in times) < 0.5 * SECONDS


def test_computation_goes_on_while_data_travel(found):
    first, second = (report["overlapped"] for report in found)
    assert first["product"] == 64.0**3
    assert first["done before rank 1 came"] is False
    assert second["sum"] == first["sum"] == 2.0 * SIZE / 4


def test_the_link_waits_for_the_last_rank(found):
    assert found[1]["overlapped"]["seconds"] >= SECONDS


def test_calls_in_flight_follow_each_other_on_the_link(found):
    for report in found:
        least = SECONDS + (IN_FLIGHT - 1) * MICROSECONDS / 1e6
        assert min(one["seconds"] for one in report["in flight"]) >= least
        assert min(one["seconds"] for one in report["in flight"]) < 1.3 * least


def test_waiting_costs_nothing(found):
    waiting = found[0]["waiting"]
    assert waiting["seconds"] >= 1
    assert waiting["computed"] < 0.2 * waiting["seconds"]
